"""Our signatures, compared with botocore's for many random requests."""

from __future__ import annotations

import datetime
import json
import random
import string
import subprocess
from pathlib import Path
from typing import Any

from support import library

SIGNER = Path(__file__).parents[2] / "build" / "release" / "tests" / "unit" / "store" / "s3_signer"
COUNT = 500


def random_request(chance: random.Random) -> dict[str, Any]:
    def text(letters: str, least: int, most: int) -> str:
        return "".join(chance.choice(letters) for _ in range(chance.randint(least, most)))

    plain = string.ascii_letters + string.digits
    odd = plain + "-._~!$&'()*+,;=:@ %#?[]/\"<>\\^`{|}éß漢"
    names = [text(plain + "-", 1, 12) for _ in range(chance.randint(0, 5))]
    headers = {f"x-amz-{text(string.ascii_lowercase, 1, 8)}": text(plain + "  -=/", 1, 20) for _ in range(3)}
    if chance.random() < 0.5:
        headers["range"] = f"bytes={chance.randint(0, 9)}-{chance.randint(10, 99)}"
    return {
        "method": chance.choice(["GET", "PUT", "POST", "DELETE", "HEAD"]),
        "host": chance.choice(["bucket.s3.eu-west-1.amazonaws.com", "127.0.0.1:9000", "minio.example"]),
        "key": text(odd, 0, 40).lstrip("/"),
        "query": [[name, text(odd, 0, 15)] for name in dict.fromkeys(names)],
        "headers": [[name, value.strip()] for name, value in headers.items() if value.strip()],
        "payload_hash": chance.choice(["UNSIGNED-PAYLOAD", text("0123456789abcdef", 64, 64)]),
        "region": chance.choice(["us-east-1", "eu-west-1", "auto"]),
        "unix_seconds": chance.randint(1_000_000_000, 2_000_000_000),
        "access_key": text(plain, 5, 20),
        "secret_key": text(plain + "/+", 10, 40),
        "session_token": chance.choice(["", text(plain + "/+=", 20, 60)]),
    }


def of_botocore(request: dict[str, Any]) -> str:
    auth, awsrequest, credentials = (
        library("botocore.auth"),
        library("botocore.awsrequest"),
        library("botocore.credentials"),
    )
    from urllib.parse import quote

    signer = auth.S3SigV4Auth(
        credentials.Credentials(request["access_key"], request["secret_key"], request["session_token"] or None),
        "s3",
        request["region"],
    )
    time = datetime.datetime.fromtimestamp(request["unix_seconds"], datetime.UTC)
    one = awsrequest.AWSRequest(
        method=request["method"],
        url=f"https://{request['host']}/{quote(request['key'], safe='/~')}",
        params=dict(request["query"]),
        headers={**dict(request["headers"]), "x-amz-content-sha256": request["payload_hash"]},
    )
    one.context["timestamp"] = time.strftime("%Y%m%dT%H%M%SZ")
    one.headers["X-Amz-Date"] = one.context["timestamp"]
    one.headers["host"] = request["host"]
    if request["session_token"]:
        one.headers["X-Amz-Security-Token"] = request["session_token"]
    canonical = signer.canonical_request(one)
    to_sign = signer.string_to_sign(one, canonical)
    names = signer.signed_headers(signer.headers_to_sign(one))
    return (
        f"AWS4-HMAC-SHA256 Credential={signer.scope(one)}, SignedHeaders={names}, "
        f"Signature={signer.signature(to_sign, one)}"
    )


def test_signatures_are_those_of_botocore() -> None:
    chance = random.Random(16)
    requests = [random_request(chance) for _ in range(COUNT)]
    assert SIGNER.exists(), "build it: cmake --build build/release --target s3_signer"
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    ours = subprocess.run([SIGNER], input=lines, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(ours) == COUNT
    for request, signed in zip(requests, ours, strict=True):
        assert signed == of_botocore(request), request
