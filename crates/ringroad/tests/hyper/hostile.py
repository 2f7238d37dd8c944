"""hyper-h2 sessions that violate HTTP/2: `hostile.py PORT` prints "ok NAME" for each session with the expected result.

hyper-h2 opens the connection and compresses fields, with its own checks turned off; hyperframe builds the frames that hyper-h2
does not send. The expected result of a session is a connection error (GOAWAY), a stream error (RST_STREAM) or a response, as
required by the section of RFC 9113 that is named next to the case. After each session, a new connection must be served.
"""

import socket
import struct
import sys

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, ResponseReceived, StreamEnded, StreamReset
from hyperframe.frame import ContinuationFrame, DataFrame, HeadersFrame, RstStreamFrame, WindowUpdateFrame

TIMEOUT = 60
PROTOCOL, FLOW, CLOSED, SIZE, COMPRESSION, CALM = 1, 3, 5, 6, 9, 11
GET = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "here")]
# The upstream of this path never responds.
POST = [(":method", "POST"), GET[1], (":path", "/slow"), GET[3]]


class Session:
    """A connection on which the client preface has been sent."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT)
        config = H2Configuration(
            client_side=True,
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
            validate_inbound_headers=False,
        )
        self.h2 = H2Connection(config)
        self.h2.initiate_connection()
        self.send(self.h2.data_to_send())
        self.goaway, self.resets, self.statuses, self.ended, self.is_closed = None, {}, {}, set(), False

    def send(self, data):
        """Returns False if the server has closed the connection."""
        try:
            self.socket.sendall(data)
            return True
        except OSError:
            return False

    def frame(self, kind, flags, stream, payload):
        return self.send(struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload)

    def block(self, fields):
        return self.h2.encoder.encode(fields)

    def head(self, stream, fields, ends=True):
        frame = HeadersFrame(stream, self.block(fields))
        frame.flags.add("END_HEADERS")
        if ends:
            frame.flags.add("END_STREAM")
        return self.send(frame.serialize())

    def data(self, stream, data, ends=False):
        frame = DataFrame(stream, data)
        if ends:
            frame.flags.add("END_STREAM")
        return self.send(frame.serialize())

    def read(self, until):
        """Reads until `until()` is true or the server has closed the connection."""
        buffer = b""
        while not until() and not self.is_closed:
            try:
                data = self.socket.recv(65536)
            except OSError:
                data = b""
            self.is_closed = not data
            buffer += data
            while len(buffer) >= 9 and len(buffer) >= 9 + int.from_bytes(buffer[:3], "big"):
                length = 9 + int.from_bytes(buffer[:3], "big")
                self.note(buffer[:length])
                buffer = buffer[length:]

    def note(self, frame):
        """Parses the frame here: hyper-h2 rejects frames on streams that it did not open itself."""
        kind, flags, stream = frame[3], frame[4], int.from_bytes(frame[5:9], "big")
        payload = frame[9:]
        if kind == 1:
            fields = dict(self.h2.decoder.decode(payload))
            if ":status" in fields:
                self.statuses[stream] = int(fields[":status"])
        if kind in (0, 1) and flags & 1:
            self.ended.add(stream)
        elif kind == 3:
            self.resets[stream] = int.from_bytes(payload, "big")
        elif kind == 4 and not flags & 1:
            self.frame(4, 1, 0, b"")
        elif kind == 7:
            self.goaway = int.from_bytes(payload[4:8], "big")


def serves(port):
    """Runs a valid hyper-h2 session."""
    connection = socket.create_connection(("127.0.0.1", port), TIMEOUT)
    h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    h2.initiate_connection()
    h2.send_headers(1, GET, end_stream=True)
    connection.sendall(h2.data_to_send())
    status, is_over = None, False
    while not is_over:
        data = connection.recv(65536)
        assert data, "the connection is closed"
        for event in h2.receive_data(data):
            if isinstance(event, ResponseReceived):
                status = dict(event.headers)[":status"]
            is_over |= isinstance(event, StreamEnded)
            assert not isinstance(event, (StreamReset, ConnectionTerminated)), event
        connection.sendall(h2.data_to_send())
    assert status == "200", status


def repeat(session, send):
    """Calls `send` until the server has closed the connection."""
    for number in range(20000):
        if not send(session, number):
            return


def fragments(session):
    session.frame(1, 1, 1, session.block(GET))
    repeat(session, lambda session, _: session.send(ContinuationFrame(1, b"").serialize()))


def rapid_resets(session, number):
    stream = 2 * number + 1
    frame = HeadersFrame(stream, session.block(GET[:1] + POST[1:]))
    frame.flags |= {"END_HEADERS", "END_STREAM"}
    return session.send(frame.serialize() + RstStreamFrame(stream, 8).serialize())


def cases():
    """Yields the name of each case, the function that sends its frames, and the expected result."""
    for name, fields in [
        # 8.2.1, 8.2.2, 8.3, 8.3.1
        ("a name in upper case", GET + [("X-A", "b")]),
        ("a blank in a name", GET + [("x a", "b")]),
        ("a line feed in a value", GET + [("x", "a\nb: c")]),
        ("a NUL in a value", GET + [("x", "a\0b")]),
        ("a blank before a value", GET + [("x", " a")]),
        ("connection", GET + [("connection", "close")]),
        ("keep-alive", GET + [("keep-alive", "timeout=1")]),
        ("proxy-connection", GET + [("proxy-connection", "close")]),
        ("transfer-encoding", GET + [("transfer-encoding", "chunked")]),
        ("upgrade", GET + [("upgrade", "h2c")]),
        ("te", GET + [("te", "gzip")]),
        ("a pseudo field behind others", GET[:3] + [("x", "a"), GET[3]]),
        ("a pseudo field twice", GET + [(":path", "/other")]),
        ("an unknown pseudo field", GET + [(":other", "a")]),
        ("a pseudo field of responses", GET + [(":status", "200")]),
        ("no method", GET[1:]),
        ("no scheme", GET[:1] + GET[2:]),
        ("no path", GET[:2] + GET[3:]),
        ("an empty path", GET[:2] + [(":path", ""), GET[3]]),
        ("a path without a slash", GET[:2] + [(":path", "x"), GET[3]]),
        ("another host", GET + [("host", "there")]),
        ("a body that is announced and does not come", POST + [("content-length", "5")]),
    ]:
        yield name, lambda session, fields=fields: session.head(1, fields), ("malformed", PROTOCOL)
    for name, kind, flags, stream, payload, code in [
        ("DATA on an idle stream", 0, 0, 1, b"abc", PROTOCOL),  # 5.1
        ("RST_STREAM on an idle stream", 3, 0, 1, b"\0\0\0\x08", PROTOCOL),
        ("WINDOW_UPDATE on an idle stream", 8, 0, 1, b"\0\0\0\x01", PROTOCOL),
        ("an even stream", 1, 5, 2, b"\x82\x86\x84", PROTOCOL),  # 5.1.1
        ("DATA without a stream", 0, 0, 0, b"abc", PROTOCOL),  # 6.1
        ("HEADERS without a stream", 1, 5, 0, b"\x82\x86\x84", PROTOCOL),  # 6.2
        ("padding longer than its frame", 1, 13, 1, b"\x05\x82\x86\x84", PROTOCOL),
        ("RST_STREAM of three bytes", 3, 0, 1, b"\0\0\0", SIZE),  # 6.4
        ("SETTINGS on a stream", 4, 0, 1, b"", PROTOCOL),  # 6.5
        ("SETTINGS of five bytes", 4, 0, 0, b"\0\0\0\0\0", SIZE),
        ("an acknowledgement with a payload", 4, 1, 0, b"\0\x04\0\0\0\x01", SIZE),
        ("ENABLE_PUSH of 2", 4, 0, 0, b"\0\x02\0\0\0\x02", PROTOCOL),  # 6.5.2
        ("INITIAL_WINDOW_SIZE above the largest", 4, 0, 0, b"\0\x04\x80\0\0\0", FLOW),
        ("MAX_FRAME_SIZE below the least", 4, 0, 0, b"\0\x05\0\0\0\x01", PROTOCOL),
        ("PUSH_PROMISE", 5, 4, 1, b"\0\0\0\x02\x82\x86\x84", PROTOCOL),  # 6.6
        ("PING on a stream", 6, 0, 1, b"12345678", PROTOCOL),  # 6.7
        ("PING of seven bytes", 6, 0, 0, b"1234567", SIZE),
        ("GOAWAY on a stream", 7, 0, 1, b"\0\0\0\0\0\0\0\0", PROTOCOL),  # 6.8
        ("WINDOW_UPDATE of nothing", 8, 0, 0, b"\0\0\0\0", PROTOCOL),  # 6.9
        ("WINDOW_UPDATE of three bytes", 8, 0, 0, b"\0\0\0", SIZE),
        ("a window above the largest", 8, 0, 0, b"\x7f\xff\xff\xff", FLOW),  # 6.9.1
        ("CONTINUATION without HEADERS", 9, 4, 1, b"\x82", PROTOCOL),  # 6.10
        ("a frame longer than allowed", 0, 0, 1, b"x" * 16385, SIZE),  # 4.2
        ("an index of no table", 1, 5, 1, b"\xff\x80\x01", COMPRESSION),  # 4.3
        ("index 0", 1, 5, 1, b"\x80", COMPRESSION),
        ("a table larger than allowed", 1, 5, 1, b"\x3f\xe2\x7f\x82\x86\x84", COMPRESSION),
        ("a field cut short", 1, 5, 1, b"\x40\x0aabc", COMPRESSION),
    ]:
        yield name, lambda session, frame=(kind, flags, stream, payload): session.frame(*frame), ("goaway", code)

    def interrupted(session):
        session.frame(1, 1, 1, session.block(GET))
        session.frame(6, 0, 0, b"12345678")

    def below(session):
        session.head(5, GET)
        session.head(3, GET)

    def open_then(step):
        return lambda session: (session.head(1, POST, ends=False), step(session))

    yield "a block with another frame in it", interrupted, ("goaway", PROTOCOL)
    yield "a stream below another one", below, ("goaway", PROTOCOL)
    yield "DATA behind the end", open_then(lambda s: (s.data(1, b"", True), s.data(1, b"x"))), ("closed", CLOSED)
    yield "a stream's window above the largest", open_then(
        lambda s: s.send(WindowUpdateFrame(1, 2**31 - 1).serialize())
    ), ("reset", FLOW)
    yield "a pseudo field in trailers", open_then(lambda s: s.head(1, [(":path", "/")])), ("reset", PROTOCOL)
    yield "trailers that end nothing", open_then(lambda s: s.head(1, [("x", "a")], ends=False)), ("reset", PROTOCOL)
    yield "a body longer than announced", lambda s: (
        s.head(1, POST + [("content-length", "2")], ends=False),
        s.data(1, b"abc", True),
    ), ("reset", PROTOCOL)
    yield "a flood of PING", lambda s: repeat(s, lambda s, _: s.frame(6, 0, 0, b"12345678")), ("goaway", CALM)
    yield "a flood of SETTINGS", lambda s: repeat(s, lambda s, _: s.frame(4, 0, 0, b"")), ("goaway", CALM)
    yield "a flood of empty DATA", open_then(lambda s: repeat(s, lambda s, _: s.data(1, b""))), ("goaway", CALM)
    yield "a flood of fragments", fragments, ("goaway", CALM)
    yield "a flood of resets", lambda s: repeat(s, rapid_resets), ("goaway", CALM)
    yield "frames of an unknown type", lambda s: (s.frame(0xFE, 0xFF, 9, b"x" * 100), s.head(1, GET)), ("status", 200)


def check(port, send, wanted):
    session = Session(port)
    send(session)
    what, code = wanted
    if what == "goaway":
        session.read(lambda: False)
        assert session.goaway == code, (session.goaway, session.resets, session.statuses)
    elif what == "closed":
        # RFC 9113 section 5.1 permits both a stream error and a connection error.
        session.read(lambda: session.resets or session.goaway is not None)
        assert code in (session.goaway, session.resets.get(1)), (session.goaway, session.resets)
    elif what == "reset":
        session.read(lambda: session.resets)
        assert session.resets == {1: code}, (session.goaway, session.resets)
    elif what == "malformed":
        session.read(lambda: session.resets)
        assert session.resets == {1: code} and session.statuses == {1: 400}, (session.resets, session.statuses)
    else:
        session.read(lambda: session.ended)
        assert session.statuses == {1: code}, (session.goaway, session.resets, session.statuses)
    if what != "goaway":
        # Other streams of the connection must still work.
        session.head(7, GET)
        session.read(lambda: 7 in session.ended)
        assert session.statuses.get(7) == 200 or what == "closed", session.goaway
    session.socket.close()


def main(port):
    for name, send, wanted in cases():
        try:
            check(port, send, wanted)
            serves(port)
        except AssertionError as error:
            print(f"failed {name}: {wanted}, {error}", flush=True)
        else:
            print(f"ok {name}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
