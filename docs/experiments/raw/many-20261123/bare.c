/* The floor by epoll: epoll_wait, recv, send, and nothing else. What is asked is not looked at; a connection is its
   descriptor, so no memory of this program belongs to one.
   cc -O2 -o bare bare.c; ./bare PORT */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static const char answer[] =
    "HTTP/1.1 200 OK\r\nServer: bare/1.22.1\r\nDate: Mon, 23 Nov 2026 12:00:00 GMT\r\n"
    "Content-Type: text/plain\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello";

static void take(int poll, int listener) {
    int fd, on = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.fd = fd};
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
    }
}

int main(int count, char **arguments) {
    int port = count > 1 ? atoi(arguments[1]) : 8080, on = 1;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), poll = epoll_create1(0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct epoll_event events[256], listening = {.events = EPOLLIN, .data.fd = listener};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) {
        perror("listen");
        return 1;
    }
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &listening);
    for (;;) {
        int ready = epoll_wait(poll, events, 256, -1);
        for (int i = 0; i < ready; i++) {
            char request[4096];
            int fd = events[i].data.fd;
            if (fd == listener) {
                take(poll, listener);
                continue;
            }
            ssize_t received = recv(fd, request, sizeof request, 0);
            if (received == 0)
                close(fd);
            else if (received > 0)
                send(fd, answer, sizeof answer - 1, MSG_NOSIGNAL);
        }
    }
}
