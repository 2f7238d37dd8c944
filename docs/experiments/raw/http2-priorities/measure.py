"""How responses share a saturated connection: `measure.py NAME=PORT … > plot.svg`, figures on standard error.

A client of hyper-h2 asks for four images (`priority: u=5, i`), and for a style sheet (`priority: u=0`) when 200 KiB of them are
here. It reads 4 KiB in a millisecond, so that the connection is the bottleneck. Each response is drawn by what is here of it, over
all that was received: no clock decides.
"""

import socket
import sys
import time

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, StreamEnded

LATE_AFTER = 200 << 10
COLOURS = ["#7a9cc6", "#5b7fb0", "#3f6396", "#26477a", "#c0392b"]


def measure(port):
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
    connection.connect(("127.0.0.1", port))
    h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    h2.initiate_connection()
    h2.update_settings({4: 8 << 20})
    h2.increment_flow_control_window(8 << 20)

    def ask(stream, path, priority):
        h2.send_headers(
            stream,
            [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "here"), ("priority", priority)],
            end_stream=True,
        )

    for stream in (1, 3, 5, 7):
        ask(stream, "/image.bin", "u=5, i")
    connection.sendall(h2.data_to_send())
    total, got, ends, points, asked = 0, {}, {}, {}, None
    while len(ends) < 5:
        data = connection.recv(4096)
        assert data, "the connection is closed"
        for event in h2.receive_data(data):
            if isinstance(event, DataReceived):
                size, stream = len(event.data), event.stream_id
                total += size
                got[stream] = got.get(stream, 0) + size
                points.setdefault(stream, []).append((total, got[stream]))
                h2.acknowledge_received_data(event.flow_controlled_length, stream)
            elif isinstance(event, StreamEnded):
                ends[event.stream_id] = total
        if asked is None and total >= LATE_AFTER:
            asked = total
            ask(9, "/style.bin", "u=0")
        connection.sendall(h2.data_to_send())
        time.sleep(0.001)
    return asked, points, ends, total


def panel(name, result, left):
    asked, points, ends, total = result
    width, height, top = 400, 220, 40
    x = lambda value: left + value * width / total
    y = lambda share: top + height - share * height
    parts = [
        f'<text x="{left}" y="{top - 14}" font-weight="bold">{name}</text>',
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#999"/>',
        f'<line x1="{x(asked):.1f}" y1="{top}" x2="{x(asked):.1f}" y2="{top + height}" stroke="#c0392b" stroke-dasharray="3 3"/>',
        f'<text x="{left}" y="{top + height + 18}">0</text>',
        f'<text x="{left + width}" y="{top + height + 18}" text-anchor="end">{total >> 10} KiB received</text>',
    ]
    for index, stream in enumerate(sorted(points)):
        size = points[stream][-1][1]
        start = asked if stream == 9 else 0
        line = " ".join(f"{x(at):.1f},{y(done / size):.1f}" for at, done in [(start, 0)] + points[stream] + [(ends[stream], size)])
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[index]}" stroke-width="{3 if stream == 9 else 1.5}"/>')
    return parts


def main(servers):
    parts = []
    for index, server in enumerate(servers):
        name, port = server.split("=")
        result = measure(int(port))
        asked, _, ends, total = result
        images = [ends[stream] >> 10 for stream in (1, 3, 5, 7)]
        print(
            f"{name}: style sheet asked for at {asked >> 10} KiB, whole at {ends[9] >> 10}; images whole at {images} of {total >> 10} KiB",
            file=sys.stderr,
        )
        parts += panel(name, result, 40 + 460 * index)
    size = 60 + 460 * len(servers)
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} 320" width="{size}" height="320" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>'
    )
    print("\n".join(parts))
    print('<text x="40" y="305" fill="#c0392b">red: a style sheet (u=0), asked for at the dashed line</text>')
    print('<text x="400" y="305" fill="#26477a">blue: four images (u=5, i); each line rises from nothing to the whole response</text>')
    print("</svg>")


if __name__ == "__main__":
    main(sys.argv[1:])
