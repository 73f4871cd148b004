"""The SDK for kernel-images (PyPI `kernel`) against `outrigger processes --compat kernel-images`: each process call once."""

import base64
import time
from urllib.parse import parse_qs, urlsplit

import kernel
from server import Server

BROWSER = "b1"

with Server("processes", "--path", f"/browsers/{BROWSER}/process", "--compat", "kernel-images") as server:
    url = urlsplit(server.url.replace("ws", "http", 1))
    token = parse_qs(url.query)["token"][0]
    client = kernel.Kernel(api_key=token, base_url=f"{url.scheme}://{url.netloc}", max_retries=0)
    calls = client.browsers.process

    answer = calls.exec(BROWSER, command="sh", args=["-c", "printf out; printf err >&2; exit 3"])
    assert (answer.exit_code, base64.b64decode(answer.stdout_b64), base64.b64decode(answer.stderr_b64)) == (3, b"out", b"err")

    # A reader that is slower than the process misses nothing.
    process = calls.spawn(BROWSER, command="sh", args=["-c", "head -c 5000000 /dev/zero; read line; echo $line >&2; exit 4"])
    length, errors, code = 0, b"", None
    with calls.stdout_stream(process.process_id, id_or_name=BROWSER) as events:
        for event in events:
            data = base64.b64decode(event.data_b64 or "")
            if event.stream == "stdout":
                length += len(data)
                time.sleep(0.001)
            elif event.stream == "stderr":
                errors += data
            if length == 5_000_000 and event.stream == "stdout":
                data_b64 = base64.b64encode(b"hello\n").decode()
                assert calls.stdin(process.process_id, id_or_name=BROWSER, data_b64=data_b64).written_bytes == 6
            code = event.exit_code if event.event == "exit" else code
    assert (length, errors, code) == (5_000_000, b"hello\n", 4), (length, errors, code)

    process = calls.spawn(BROWSER, command="sleep", args=["1000"], allocate_tty=True, rows=30, cols=100)
    assert calls.resize(process.process_id, id_or_name=BROWSER, rows=40, cols=120).ok
    assert calls.status(process.process_id, id_or_name=BROWSER).state == "running"
    assert calls.kill(process.process_id, id_or_name=BROWSER, signal="TERM").ok
    for _ in range(600):
        if calls.status(process.process_id, id_or_name=BROWSER).state == "exited":
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the process does not exit")

    for error, body in [
        (kernel.BadRequestError, {"command": "no-such-command"}),
        (kernel.InternalServerError, {"command": "sleep", "args": ["1000"], "timeout_sec": 1}),
    ]:
        try:
            calls.exec(BROWSER, **body)
        except error:
            continue
        raise AssertionError(f"{body} has no {error.__name__}")
print("  kernel ok")
