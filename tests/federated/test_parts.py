"""Keys, certificates, the relay that counts, shards: what needs Flower's packages but no federation."""

from __future__ import annotations

import socket
import ssl
import threading

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from flwr.app import Array, ArrayRecord, RecordDict

from kd3a.channel import RefusedMessage
from kd3a.federation import __main__ as command
from kd3a.federation import flower, keys
from kd3a.federation.proxy import Proxy


def test_keys_are_their_owners_alone(tmp_path, capsys):
    assert command.main(["certificates", str(tmp_path / "target"), "--host", "target.example.org"]) == 0
    assert command.main(["key", str(tmp_path / "node")]) == 0
    for path in ("target/ca.key", "target/server.key", "node/key"):
        assert (tmp_path / path).stat().st_mode & 0o777 == 0o600
    private = serialization.load_ssh_private_key((tmp_path / "node" / "key").read_bytes(), None)
    public = serialization.load_ssh_public_key((tmp_path / "node" / "key.pub").read_bytes())
    assert private.public_key() == public and public.curve.name == "secp384r1"
    server = x509.load_pem_x509_certificate((tmp_path / "target" / "server.crt").read_bytes())
    ca = x509.load_pem_x509_certificate((tmp_path / "target" / "ca.crt").read_bytes())
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["target.example.org", "localhost"]
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def echo(context: ssl.SSLContext | None) -> int:
    """A server that sends back what it gets, once; returns its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener.accept()[0] as plain:
            end = context.wrap_socket(plain, server_side=True) if context else plain
            end.sendall(end.recv(100))

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


@pytest.mark.parametrize("decrypts", [False, True])
def test_the_relay_counts_and_reads_only_with_the_servers_key(tmp_path, decrypts):
    keys.server(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    proxy = Proxy(echo(context), keep=True, keys=tmp_path if decrypts else None)
    client = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as plain:
        secure = client.wrap_socket(plain, server_hostname="127.0.0.1")
        secure.sendall(b"a secret")
        assert secure.recv(100) == b"a secret"
    (stream,) = proxy.streams
    assert (stream["up"] == b"a secret" == stream["down"]) is decrypts
    assert proxy.up == len(stream["up"]) and proxy.down == len(stream["down"])
    assert decrypts or (proxy.up > 100 and b"secret" not in stream["up"] + stream["down"])
    proxy.close()


def test_only_safetensors_are_taken_from_a_record():
    content = flower.response(b"abc", 0.5)
    assert flower.unpacked(content, "amber") == b"abc"
    numpy = Array(torch.ones(2).numpy())
    other = RecordDict({"tensors": ArrayRecord({"message": numpy})})
    more = RecordDict({"tensors": ArrayRecord({"message": flower.packed(b"a")["message"], "x": numpy})})
    for bad in (other, more, RecordDict()):
        with pytest.raises(RefusedMessage, match="amber holds something else"):
            flower.unpacked(bad, "amber")
