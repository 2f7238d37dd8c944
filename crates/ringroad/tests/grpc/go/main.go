// gRPC calls by grpc-go, as a server and as a client, for the tests of grpc_pass.
//
//	calls server                        prints "listening ADDRESS"
//	calls client ADDRESS [CA]           makes each kind of call once, prints "ok NAME" for each
//	calls deadlines ADDRESS COUNT [CA]  lets COUNT calls expire beside a stream, prints "expired" and the codes of the calls
//	calls load ADDRESS WORKERS [CA]     calls until standard input ends, prints "done CALLS STREAMS FAILED"
//
// Messages are bytes without a schema, so that no schema compiler is needed. With a CA file the client uses TLS.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// plain is a codec that passes bytes on unchanged.
type plain struct{}

func (plain) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (plain) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
func (plain) Name() string                       { return "plain" }

const messageMax = 16 << 20

// Numbers of calls of Wait that the server has begun, and that have ended at the server: cancelled, or after their deadline.
var waitsBegun, waitsEnded atomic.Int64

func unary(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var request []byte
	if err := decode(&request); err != nil {
		return nil, err
	}
	incoming, _ := metadata.FromIncomingContext(ctx)
	outgoing := metadata.MD{}
	for name, values := range incoming {
		if strings.HasPrefix(name, "x-") {
			outgoing[name] = values
		}
	}
	grpc.SetHeader(ctx, outgoing)
	grpc.SetTrailer(ctx, metadata.Pairs("x-length", strconv.Itoa(len(request)), "x-bin", "\x00\xff"))
	return &request, nil
}

func fail(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var request []byte
	if err := decode(&request); err != nil {
		return nil, err
	}
	return nil, status.Error(codes.FailedPrecondition, "not now: 100 % größer")
}

// wait returns when its call is cancelled or has exceeded its deadline.
func wait(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var request []byte
	if err := decode(&request); err != nil {
		return nil, err
	}
	waitsBegun.Add(1)
	<-ctx.Done()
	waitsEnded.Add(1)
	return nil, ctx.Err()
}

func count(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var request []byte
	if err := decode(&request); err != nil {
		return nil, err
	}
	reply := []byte(fmt.Sprint(waitsBegun.Load(), " ", waitsEnded.Load()))
	return &reply, nil
}

// down sends the number of messages that the request contains.
func down(_ any, stream grpc.ServerStream) error {
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	most, _ := strconv.Atoi(string(request))
	for i := range most {
		message := []byte(fmt.Sprint("message ", i))
		if err := stream.SendMsg(&message); err != nil {
			return err
		}
	}
	return nil
}

// up returns the numbers of received messages and bytes.
func up(_ any, stream grpc.ServerStream) error {
	messages, size := 0, 0
	for {
		var request []byte
		if err := stream.RecvMsg(&request); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		messages++
		size += len(request)
	}
	reply := []byte(fmt.Sprint(messages, " ", size))
	return stream.SendMsg(&reply)
}

// both returns each message when it is received.
func both(_ any, stream grpc.ServerStream) error {
	for {
		var request []byte
		if err := stream.RecvMsg(&request); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.SendMsg(&request); err != nil {
			return err
		}
	}
}

func serve() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.ForceServerCodec(plain{}), grpc.MaxRecvMsgSize(messageMax), grpc.MaxSendMsgSize(messageMax))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "calls.Calls",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "Unary", Handler: unary},
			{MethodName: "Fail", Handler: fail},
			{MethodName: "Wait", Handler: wait},
			{MethodName: "Count", Handler: count},
		},
		Streams: []grpc.StreamDesc{
			{StreamName: "Down", Handler: down, ServerStreams: true},
			{StreamName: "Up", Handler: up, ClientStreams: true},
			{StreamName: "Both", Handler: both, ServerStreams: true, ClientStreams: true},
		},
	}, struct{}{})
	fmt.Println("listening", listener.Addr())
	// The end of standard input means that the parent has exited.
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	return server.Serve(listener)
}

// client is a connection and its calls.
type client struct{ *grpc.ClientConn }

func connect(address string, authority []string) (client, error) {
	transport := insecure.NewCredentials()
	if len(authority) > 0 {
		pem, err := os.ReadFile(authority[0])
		if err != nil {
			return client{}, err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		transport = credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "a.test"})
	}
	connection, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(plain{}), grpc.MaxCallRecvMsgSize(messageMax), grpc.MaxCallSendMsgSize(messageMax)))
	return client{connection}, err
}

func (c client) call(ctx context.Context, name string, request []byte, options ...grpc.CallOption) ([]byte, error) {
	var reply []byte
	err := c.Invoke(ctx, "/calls.Calls/"+name, &request, &reply, options...)
	return reply, err
}

func (c client) stream(ctx context.Context, name string) (grpc.ClientStream, error) {
	return c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/calls.Calls/"+name)
}

func pattern(size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i*7 + i>>8)
	}
	return data
}

func (c client) unary(ctx context.Context) error {
	var trailer metadata.MD
	reply, err := c.call(ctx, "Unary", []byte("hello"), grpc.Trailer(&trailer))
	if err != nil || string(reply) != "hello" {
		return fmt.Errorf("%q %w", reply, err)
	}
	if fmt.Sprint(trailer["x-length"], trailer["x-bin"]) != "[5] [\x00\xff]" {
		return fmt.Errorf("trailers %v", trailer)
	}
	return nil
}

func (c client) large(ctx context.Context) error {
	data := pattern(10 << 20)
	reply, err := c.call(ctx, "Unary", data)
	if err == nil && !bytes.Equal(reply, data) {
		err = fmt.Errorf("%d bytes came back, which differ", len(reply))
	}
	return err
}

func (c client) metadata(ctx context.Context) error {
	long := strings.Repeat("0123456789abcdef", 512)
	var header metadata.MD
	_, err := c.call(metadata.AppendToOutgoingContext(ctx, "x-long", long, "x-b-bin", "\x00\x01\xfe"), "Unary", nil, grpc.Header(&header))
	if err == nil && (fmt.Sprint(header["x-long"]) != "["+long+"]" || fmt.Sprint(header["x-b-bin"]) != "[\x00\x01\xfe]") {
		err = fmt.Errorf("metadata %v", header)
	}
	return err
}

func (c client) down(ctx context.Context) error {
	stream, err := c.stream(ctx, "Down")
	if err != nil {
		return err
	}
	request := []byte("500")
	if err := stream.SendMsg(&request); err != nil {
		return err
	}
	stream.CloseSend()
	for i := 0; ; i++ {
		var reply []byte
		err := stream.RecvMsg(&reply)
		if err == io.EOF && i == 500 {
			return nil
		}
		if err != nil || string(reply) != fmt.Sprint("message ", i) {
			return fmt.Errorf("message %d: %q %w", i, reply, err)
		}
	}
}

func (c client) up(ctx context.Context) error {
	stream, err := c.stream(ctx, "Up")
	if err != nil {
		return err
	}
	request := pattern(3000)
	for range 400 {
		if err := stream.SendMsg(&request); err != nil {
			return err
		}
	}
	stream.CloseSend()
	var reply []byte
	if err := stream.RecvMsg(&reply); err != nil || string(reply) != "400 1200000" {
		return fmt.Errorf("%q %w", reply, err)
	}
	if err := stream.RecvMsg(&reply); err != io.EOF {
		return fmt.Errorf("an end: %w", err)
	}
	return nil
}

// both waits for each reply before it sends the next message, so the proxy must not delay a message.
func (c client) both(ctx context.Context) error {
	stream, err := c.stream(ctx, "Both")
	if err != nil {
		return err
	}
	return converse(stream, 50)
}

// converse sends messages, waits for each reply before the next message, and then for the end of the stream.
func converse(stream grpc.ClientStream, count int) error {
	for i := range count {
		request := pattern(i * 200)
		if err := stream.SendMsg(&request); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		var reply []byte
		if err := stream.RecvMsg(&reply); err != nil || !bytes.Equal(reply, request) {
			return fmt.Errorf("message %d: %w", i, err)
		}
	}
	stream.CloseSend()
	var reply []byte
	if err := stream.RecvMsg(&reply); err != io.EOF {
		return fmt.Errorf("an end: %w", err)
	}
	return nil
}

func (c client) fails(ctx context.Context) error {
	_, err := c.call(ctx, "Fail", nil)
	if status.Code(err) != codes.FailedPrecondition || status.Convert(err).Message() != "not now: 100 % größer" {
		return fmt.Errorf("status %w", err)
	}
	_, err = c.call(ctx, "None", nil)
	if status.Code(err) != codes.Unimplemented {
		return fmt.Errorf("a method that is not there: %w", err)
	}
	return nil
}

// counts returns the numbers of calls of Wait that the server has begun, and that have ended at the server.
func (c client) counts(ctx context.Context) (begun, ended int, err error) {
	reply, err := c.call(ctx, "Count", nil)
	if err == nil {
		_, err = fmt.Sscan(string(reply), &begun, &ended)
	}
	return begun, ended, err
}

// ended waits until all calls of Wait have ended at the server; it returns their number.
func (c client) ended(ctx context.Context) (int, error) {
	for {
		begun, ended, err := c.counts(ctx)
		if err != nil || begun == ended {
			return begun, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// deadline tries again if the deadline passes at the server first: the server resets the stream with CANCEL, and the proxy
// returns the corresponding status. It also tries again if the deadline has passed before the call reached the server.
func (c client) deadline(ctx context.Context) error {
	for range 20 {
		before, err := c.ended(ctx)
		if err != nil {
			return err
		}
		short, stop := context.WithTimeout(ctx, 200*time.Millisecond)
		_, err = c.call(short, "Wait", nil)
		stop()
		switch status.Code(err) {
		case codes.DeadlineExceeded:
			if after, err := c.ended(ctx); err != nil || after > before {
				return err
			}
		case codes.Unavailable, codes.Canceled:
		default:
			return fmt.Errorf("status %w", err)
		}
	}
	return fmt.Errorf("the server is always first")
}

func (c client) cancel(ctx context.Context) error {
	before, err := c.ended(ctx)
	if err != nil {
		return err
	}
	short, stop := context.WithCancel(ctx)
	go func() {
		defer stop()
		for {
			if begun, _, err := c.counts(ctx); err != nil || begun > before {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	if _, err := c.call(short, "Wait", nil); status.Code(err) != codes.Canceled {
		return fmt.Errorf("status %w", err)
	}
	_, err = c.ended(ctx)
	return err
}

func calls(address string, authority []string) error {
	c, err := connect(address, authority)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, stop := context.WithTimeout(context.Background(), 3*time.Minute)
	defer stop()
	for _, kind := range []struct {
		name string
		call func(context.Context) error
	}{
		{"unary", c.unary}, {"large", c.large}, {"metadata", c.metadata}, {"down", c.down}, {"up", c.up},
		{"both", c.both}, {"fails", c.fails}, {"deadline", c.deadline}, {"cancel", c.cancel},
	} {
		if err := kind.call(ctx); err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
		fmt.Println("ok", kind.name)
	}
	return nil
}

// deadlines lets calls expire at once while a stream of the same connection continues, then makes further calls. It prints the
// numbers of the calls by their codes. The further calls and the stream must succeed on that connection.
func deadlines(address, count string, authority []string) error {
	c, err := connect(address, authority)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, stop := context.WithTimeout(context.Background(), 3*time.Minute)
	defer stop()
	stream, err := c.stream(ctx, "Both")
	if err != nil {
		return err
	}
	most, _ := strconv.Atoi(count)
	found := make([]codes.Code, most)
	var all sync.WaitGroup
	// Fewer than the proxy's concurrent streams, so that each call is sent.
	places := make(chan struct{}, 100)
	for i := range most {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			// Some expire before the server has read their header section, some after.
			short, stop := context.WithTimeout(ctx, time.Duration(1+i%100)*time.Millisecond)
			defer stop()
			_, err := c.call(short, "Wait", nil)
			found[i] = status.Code(err)
		})
	}
	all.Wait()
	counts := map[codes.Code]int{}
	for _, code := range found {
		counts[code]++
	}
	for range 20 {
		if err := c.unary(ctx); err != nil {
			return fmt.Errorf("a call after the deadlines: %w", err)
		}
	}
	if err := converse(stream, 20); err != nil {
		return fmt.Errorf("the stream: %w", err)
	}
	if _, err := c.ended(ctx); err != nil {
		return fmt.Errorf("the ends of the calls: %w", err)
	}
	fmt.Println("expired", counts)
	return nil
}

func load(address, workers string, authority []string) error {
	c, err := connect(address, authority)
	if err != nil {
		return err
	}
	var made, streams, failed atomic.Int64
	ended := make(chan struct{})
	most, _ := strconv.Atoi(workers)
	var all sync.WaitGroup
	for worker := range most {
		all.Go(func() {
			for turn := 0; ; turn++ {
				select {
				case <-ended:
					return
				default:
				}
				call, counter := c.unary, &made
				if worker%3 == 0 {
					call, counter = c.both, &streams
				}
				if err := call(context.Background()); err != nil {
					failed.Add(1)
					fmt.Println("failed:", strings.ReplaceAll(err.Error(), "\n", " "))
				} else {
					counter.Add(1)
				}
				if turn == 0 {
					fmt.Println("began", worker)
				}
			}
		})
	}
	// Each byte of input requests the current counts.
	input := make([]byte, 1)
	for {
		if _, err := os.Stdin.Read(input); err != nil {
			break
		}
		fmt.Println("so far", made.Load(), streams.Load(), failed.Load())
	}
	close(ended)
	all.Wait()
	fmt.Println("done", made.Load(), streams.Load(), failed.Load())
	return nil
}

func main() {
	arguments := append(os.Args[1:], "", "")
	var err error
	switch arguments[0] {
	case "server":
		err = serve()
	case "client":
		err = calls(arguments[1], os.Args[3:])
	case "deadlines":
		err = deadlines(arguments[1], arguments[2], os.Args[4:])
	case "load":
		err = load(arguments[1], arguments[2], os.Args[4:])
	default:
		err = fmt.Errorf("usage: calls server | client ADDRESS [CA] | deadlines ADDRESS COUNT [CA] | load ADDRESS WORKERS [CA]")
	}
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}
