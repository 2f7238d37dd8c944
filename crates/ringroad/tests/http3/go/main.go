// A client of quic-go: requests, an upload, many concurrent streams, a new network path, version negotiation, resumption, early data.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

type client struct {
	transport *http3.Transport
	// The connection of the last dial.
	conn *quic.Conn
}

func newClient(sessions tls.ClientSessionCache) *client {
	c := &client{}
	c.transport = &http3.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ClientSessionCache: sessions},
		Dial: func(ctx context.Context, address string, t *tls.Config, q *quic.Config) (*quic.Conn, error) {
			server, err := net.ResolveUDPAddr("udp4", address)
			check(err == nil, err)
			// The smallest size that QUIC permits; larger ones are found by probes.
			q = q.Clone()
			q.InitialPacketSize = 1200
			// With a transport of its own a connection has IDs, by which it can be recognised on another path.
			c.conn, err = (&quic.Transport{Conn: socket()}).DialEarly(ctx, server, t, q)
			return c.conn, err
		},
	}
	return c
}

func check(holds bool, words ...any) {
	if !holds {
		fmt.Println(words...)
		os.Exit(1)
	}
}

func socket() net.PacketConn {
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	check(err == nil, err)
	return socket
}

func (c *client) do(method, url string, body []byte) []byte {
	request, err := http.NewRequest(method, url, bytes.NewReader(body))
	check(err == nil, err)
	response, err := c.transport.RoundTrip(request)
	check(err == nil, method, url, err)
	check(response.StatusCode < 300, method, url, response.Status)
	received, err := io.ReadAll(response.Body)
	check(err == nil, method, url, err)
	return received
}

// Continues the connection from another port, after the server has validated the path.
func (c *client) migrate() {
	path, err := c.conn.AddPath(&quic.Transport{Conn: socket()})
	check(err == nil, "AddPath", err)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err = path.Probe(ctx)
	check(err == nil, "Probe", err)
	err = path.Switch()
	check(err == nil, "Switch", err)
}

func main() {
	base := "https://localhost:" + os.Args[1]
	length, _ := strconv.Atoi(os.Args[2])
	hello := func(c *client) {
		body := c.do("GET", base+"/hello", nil)
		check(string(body) == "hello h3", "body", string(body))
	}

	c := newClient(nil)
	hello(c)
	first := c.conn
	large := c.do("GET", base+"/large.bin", nil)
	check(len(large) == length, "length", len(large))
	c.do("PUT", base+"/put/go", large)
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() { hello(c) })
	}
	all.Wait()
	c.migrate()
	hello(c)
	again := c.do("GET", base+"/large.bin", nil)
	check(bytes.Equal(again, large), "another body on the new path")
	check(c.conn == first, "the client has connected again")
	c.transport.Close()

	// The server has only the first version of QUIC.
	settings := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h3"}}
	versions := &quic.Config{InitialPacketSize: 1200, Versions: []quic.Version{quic.Version2, quic.Version1}}
	conn, err := quic.DialAddr(context.Background(), "127.0.0.1:"+os.Args[1], settings, versions)
	check(err == nil, "version negotiation", err)
	check(conn.ConnectionState().Version == quic.Version1, conn.ConnectionState().Version)
	conn.CloseWithError(0x100, "")

	sessions := tls.NewLRUClientSessionCache(4)
	c = newClient(sessions)
	hello(c)
	// The session tickets follow the handshake.
	time.Sleep(100 * time.Millisecond)
	c.transport.Close()
	c = newClient(sessions)
	body := c.do(http3.MethodGet0RTT, base+"/hello", nil)
	check(string(body) == "hello h3", "early data", string(body))
	check(c.conn.ConnectionState().Used0RTT, "no early data")
	check(c.conn.ConnectionState().TLS.DidResume, "not resumed")
	c.transport.Close()
	fmt.Println("done")
}
