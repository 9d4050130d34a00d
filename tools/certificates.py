"""Make certificates for trying TLS: `certificates.py DIR`; for nothing that matters.

`ca.pem`, a server's certificate for localhost with its key, and client certificates, each in one
file with its key: `client.pem` (CN=conformance,O=client), `nobody.pem` (CN=nobody), `stranger.pem`,
which another authority has signed, and `expired.pem`. Needs the `openssl` program.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

DAYS = "30"
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
USAGE = {
    "server": "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1\nextendedKeyUsage=serverAuth\n",
    "client": "extendedKeyUsage=clientAuth\n",
}


def openssl(*words: str) -> None:
    """Run it quietly.

    Raises:
        subprocess.CalledProcessError: it failed; what it said is in the error.
    """
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def authority(directory: Path, name: str) -> None:
    """A key and a certificate that sign others."""
    openssl(
        *("req", "-x509", *CURVE, "-days", DAYS, "-subj", f"/CN={name}"),
        *("-keyout", str(directory / f"{name}.key"), "-out", str(directory / f"{name}.pem")),
    )


def certificate(
    directory: Path, name: str, subject: str, issuer: str, usage: str, days: str = DAYS
) -> None:
    """A key and a certificate that the issuer has signed; it ends in so many days."""
    key, request, extensions = (directory / f"{name}.{ending}" for ending in ("key", "csr", "ext"))
    extensions.write_text(f"basicConstraints=CA:FALSE\n{USAGE[usage]}")
    openssl("req", "-new", *CURVE, "-subj", subject, "-keyout", str(key), "-out", str(request))
    openssl(
        *("x509", "-req", "-days", days, "-in", str(request), "-extfile", str(extensions)),
        *("-CA", str(directory / f"{issuer}.pem"), "-CAkey", str(directory / f"{issuer}.key")),
        *("-CAcreateserial", "-out", str(directory / f"{name}.pem")),
    )
    request.unlink()
    extensions.unlink()


def make(directory: Path) -> None:
    """All of them; those that are there are made anew."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("ca", "other"):
        authority(directory, name)
    certificate(directory, "server", "/CN=localhost", "ca", "server")
    for name, subject, issuer, days in (
        ("client", "/O=client/CN=conformance", "ca", DAYS),
        ("nobody", "/CN=nobody", "ca", DAYS),
        ("stranger", "/O=client/CN=conformance", "other", DAYS),
        ("expired", "/O=client/CN=conformance", "ca", "-1"),
    ):
        certificate(directory, name, subject, issuer, "client", days)
        with (directory / f"{name}.pem").open("a") as file:
            file.write((directory / f"{name}.key").read_text())


def main() -> int:
    """Make the certificates; 2 if there is no openssl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    options = parser.parse_args()
    if shutil.which("openssl") is None:
        print("the openssl program is not installed", file=sys.stderr)
        return 2
    make(options.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
