"""An application: pages with parameters, a form, a stream, an error."""
import hashlib

from flask import Flask, Response, abort, redirect, request, url_for

app = Flask(__name__, static_folder=None)


@app.get("/")
def start():
    return f"Hello, {request.args.get('name', 'visitor')}.\n"


@app.get("/article/<int:number>")
def article(number):
    if number > 99:
        abort(404)
    return f"Article {number} for {request.headers.get('X-Reader', 'all')}\n"


@app.get("/old")
def old():
    response = redirect(url_for("article", number=7))
    response.set_cookie("seen", "old")
    response.set_cookie("theme", "light")
    return response


@app.post("/upload")
def upload():
    body = request.get_data()
    return f"{len(body)} {hashlib.md5(body).hexdigest()}\n"


@app.get("/events")
def events():
    lines = (f"data: {number}\n\n" for number in range(3))
    return Response(lines, mimetype="text/event-stream")


@app.get("/broken")
def broken():
    raise RuntimeError("words for the log")
