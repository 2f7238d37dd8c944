"""A collector of OpenTelemetry for tests: OTLP/gRPC and OTLP/HTTP, with the messages of the package opentelemetry-proto.

Usage: collector.py [CERTIFICATE KEY]. Prints the ports of gRPC and HTTP, then a line of JSON for each span.
"""
import json
import sys
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service

LOCK = threading.Lock()


def report(request, protocol):
    """Prints the spans of a request."""
    for resource_spans in request.resource_spans:
        resource = {a.key: a.value.string_value for a in resource_spans.resource.attributes}
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                found = {
                    "protocol": protocol,
                    "resource": resource,
                    "scope": scope_spans.scope.name,
                    "trace": span.trace_id.hex(),
                    "id": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "state": span.trace_state,
                    "name": span.name,
                    "kind": span.kind,
                    "start": span.start_time_unix_nano,
                    "end": span.end_time_unix_nano,
                    "status": span.status.code,
                    "attributes": {a.key: MessageToDict(a.value) for a in span.attributes},
                }
                with LOCK:
                    print(json.dumps(found), flush=True)


class Service(service.TraceServiceServicer):
    """The service of OTLP/gRPC."""

    def Export(self, request, context):
        report(request, "grpc")
        return messages.ExportTraceServiceResponse()


class Handler(BaseHTTPRequestHandler):
    """The handler of OTLP/HTTP."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        report(messages.ExportTraceServiceRequest.FromString(body), "http")
        response = messages.ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(response)))
        self.end_headers()
        self.wfile.write(response)

    def log_message(self, *arguments):
        pass


def main():
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    service.add_TraceServiceServicer_to_server(Service(), server)
    if len(sys.argv) > 2:
        with open(sys.argv[1], "rb") as chain, open(sys.argv[2], "rb") as key:
            credentials = grpc.ssl_server_credentials([(key.read(), chain.read())])
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    http = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    print(port, http.server_port, flush=True)
    # The test closes standard input at its end.
    sys.stdin.read()
    http.shutdown()
    server.stop(0)


main()
