"""A gRPC server and client that use grpcio, with the same calls and arguments as grpc/go/main.go.

    calls.py server                     prints "listening ADDRESS"
    calls.py client ADDRESS [CA]        makes each kind of call once, prints "ok NAME" for each
    calls.py cancels ADDRESS COUNT [CA] cancels COUNT streaming calls beside a stream, prints "cancelled COUNT"
    calls.py load ADDRESS WORKERS [CA]  calls until standard input ends, prints "done CALLS STREAMS FAILED"

Messages are bytes without a schema.
"""

import os
import sys
import threading
import time
from concurrent import futures

import grpc

MESSAGE_MAX = 16 << 20
OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_MAX),
    ("grpc.max_send_message_length", MESSAGE_MAX),
    ("grpc.max_metadata_size", 64 << 10),
    ("grpc.absolute_max_metadata_size", 64 << 10),
]
waits_begun, waits_ended = [], []


def say(*words):
    """Prints a line with one write, so that lines of several threads do not mix."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def unary(request, context):
    outgoing = [(key, value) for key, value in context.invocation_metadata() if key.startswith("x-")]
    context.send_initial_metadata(outgoing)
    context.set_trailing_metadata([("x-length", str(len(request))), ("x-bin", b"\0\xff")])
    return request


def fail(_, context):
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now: 100 % größer")


def wait(_, context):
    waits_begun.append(1)
    over = threading.Event()
    # add_callback returns False if the call has already ended.
    if not context.add_callback(over.set) or over.wait(170):
        waits_ended.append(1)
    return b""


def count(_, context):
    return b"%d %d" % (len(waits_begun), len(waits_ended))


def down(request, _):
    return (b"message %d" % number for number in range(int(request)))


def up(requests, _):
    sizes = [len(request) for request in requests]
    return b"%d %d" % (len(sizes), sum(sizes))


def both(requests, _):
    yield from requests


def serve():
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=32), options=OPTIONS)
    methods = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Fail": grpc.unary_unary_rpc_method_handler(fail),
        "Wait": grpc.unary_unary_rpc_method_handler(wait),
        "Count": grpc.unary_unary_rpc_method_handler(count),
        "Down": grpc.unary_stream_rpc_method_handler(down),
        "Up": grpc.stream_unary_rpc_method_handler(up),
        "Both": grpc.stream_stream_rpc_method_handler(both),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("calls.Calls", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    say("listening", f"127.0.0.1:{port}")
    # Standard input ends when the parent exits.
    sys.stdin.read()
    os._exit(0)


def pattern(size):
    return bytes((number * 7 + (number >> 8)) & 0xFF for number in range(size))


class Client:
    def __init__(self, address, authority):
        options = OPTIONS + [("grpc.ssl_target_name_override", "a.test")]
        if authority:
            with open(authority, "rb") as file:
                self.channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(file.read()), options)
        else:
            self.channel = grpc.insecure_channel(address, OPTIONS)

    def call(self, name, request=b"", **more):
        return self.channel.unary_unary("/calls.Calls/" + name).with_call(request, timeout=more.pop("timeout", 60), **more)

    def unary(self):
        reply, call = self.call("Unary", b"hello")
        assert reply == b"hello", reply
        assert {("x-length", "5"), ("x-bin", b"\0\xff")} <= set(call.trailing_metadata()), call.trailing_metadata()

    def large(self):
        data = pattern(10 << 20)
        assert self.call("Unary", data)[0] == data

    def metadata(self):
        metadata = (("x-long", "0123456789abcdef" * 512), ("x-b-bin", b"\0\x01\xfe"))
        _, call = self.call("Unary", metadata=metadata)
        assert set(metadata) <= set(call.initial_metadata()), call.initial_metadata()

    def down(self):
        replies = list(self.channel.unary_stream("/calls.Calls/Down")(b"500", timeout=60))
        assert replies == [b"message %d" % number for number in range(500)], len(replies)

    def up(self):
        reply = self.channel.stream_unary("/calls.Calls/Up")((pattern(3000) for _ in range(400)), timeout=60)
        assert reply == b"400 1200000", reply

    def both(self):
        """Waits for each reply before the next message, so the proxy must not delay any message."""
        turn, requests = threading.Semaphore(1), []

        def messages():
            for number in range(20):
                turn.acquire()
                requests.append(pattern(number * 20))
                yield requests[-1]

        replies = 0
        for reply in self.channel.stream_stream("/calls.Calls/Both")(messages(), timeout=60):
            assert reply == requests[-1], replies
            replies += 1
            turn.release()
        assert replies == 20, replies

    def fails(self):
        for name, code, words in [
            ("Fail", grpc.StatusCode.FAILED_PRECONDITION, "not now: 100 % größer"),
            ("None", grpc.StatusCode.UNIMPLEMENTED, None),
        ]:
            error = self.error_of(name)
            assert error.code() == code and words in (None, error.details()), error

    def error_of(self, name, **more):
        try:
            self.call(name, **more)
        except grpc.RpcError as error:
            return error
        raise AssertionError(f"{name} does not fail")

    def counts(self):
        """Returns how many calls of Wait the server has begun and how many have ended there."""
        return [int(number) for number in self.call("Count")[0].split()]

    def ended(self):
        """Waits until all calls of Wait have ended at the server, and returns their number."""
        while True:
            begun, ended = self.counts()
            if begun == ended:
                return begun
            time.sleep(0.01)

    def deadline(self):
        """Tries again if the deadline passes at the server first: the server resets the stream with CANCEL, and the
        proxy returns the corresponding status. It also tries again if the deadline has passed before the call reached the server."""
        for _ in range(20):
            before = self.ended()
            error = self.error_of("Wait", timeout=0.2)
            early = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            assert error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, *early), error
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED and self.ended() > before:
                return
        raise AssertionError("the server is always first")

    def cancel(self):
        before = self.ended()
        call = self.channel.unary_unary("/calls.Calls/Wait").future(b"", timeout=60)
        while self.counts()[0] == before:
            time.sleep(0.01)
        call.cancel()
        assert call.code() == grpc.StatusCode.CANCELLED
        self.ended()


    def cancels(self, count):
        """Cancels streaming calls after their first message while another stream continues. The further messages of that stream
        and further calls must succeed on the same connection."""
        turns, over = threading.Semaphore(1), threading.Event()

        def messages():
            while True:
                turns.acquire()
                if over.is_set():
                    return
                yield b"kept"

        kept = self.channel.stream_stream("/calls.Calls/Both")(messages(), timeout=170)
        assert next(kept) == b"kept"
        for number in range(count):
            call = self.channel.unary_stream("/calls.Calls/Down")(b"1000000", timeout=170)
            assert next(call) == b"message 0", number
            call.cancel()
            assert call.code() == grpc.StatusCode.CANCELLED, call
            if number % 10 == 0:
                turns.release()
                assert next(kept) == b"kept", number
        for _ in range(20):
            self.unary()
        over.set()
        turns.release()
        assert list(kept) == [], "messages without a request"
        assert kept.code() == grpc.StatusCode.OK, kept


KINDS = ["unary", "large", "metadata", "down", "up", "both", "fails", "deadline", "cancel"]


def load(client, workers):
    counts, lock, over = [0, 0, 0], threading.Lock(), threading.Event()

    def work(worker):
        kind, index = (client.both, 1) if worker % 3 == 0 else (client.unary, 0)
        is_first = True
        while not over.is_set():
            try:
                kind()
                outcome = index
            except (grpc.RpcError, AssertionError) as error:
                outcome = 2
                say("failed:", repr(error).replace("\n", " "))
            with lock:
                counts[outcome] += 1
            if is_first:
                say("began", worker)
                is_first = False

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    # Each byte of input requests the current counts.
    while sys.stdin.read(1):
        say("so far", *counts)
    over.set()
    for thread in threads:
        thread.join()
    say("done", *counts)


def main(arguments):
    if arguments[0] == "server":
        serve()
    elif arguments[0] == "client":
        client = Client(arguments[1], (arguments + [None])[2])
        for name in KINDS:
            getattr(client, name)()
            say("ok", name)
    elif arguments[0] == "cancels":
        count = int(arguments[2])
        Client(arguments[1], (arguments + [None])[3]).cancels(count)
        say("cancelled", count)
    else:
        load(Client(arguments[1], (arguments + [None])[3]), int(arguments[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
