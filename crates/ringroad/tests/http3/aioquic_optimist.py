"""Acknowledges packets that it has not received. Prints the code with which the server closes the connection."""
import asyncio, ssl, sys
from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated
from aioquic.tls import Epoch


class Client(QuicConnectionProtocol):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.h3 = H3Connection(self._quic)
        self.ended = self._loop.create_future()

    def quic_event_received(self, event):
        if isinstance(event, ConnectionTerminated) and not self.ended.done():
            self.ended.set_result(event.error_code)
        self.h3.handle_event(event)

    def datagram_received(self, data, address):
        super().datagram_received(data, address)
        # The packets that the server has probably sent meanwhile.
        space = self._quic._spaces[Epoch.ONE_RTT]
        if space.largest_received_packet > 0:
            space.ack_queue.add(0, space.largest_received_packet + int(sys.argv[2]))
            self.transmit()


async def main():
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=["h3"], server_name="localhost", verify_mode=ssl.CERT_NONE
    )
    async with connect("127.0.0.1", int(sys.argv[1]), configuration=configuration, create_protocol=Client) as client:
        stream = client._quic.get_next_available_stream_id()
        fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"localhost"), (b":path", b"/large.bin")]
        client.h3.send_headers(stream, fields, end_stream=True)
        client.transmit()
        print(hex(await asyncio.wait_for(client.ended, 30)))
    print("done")


asyncio.run(main())
