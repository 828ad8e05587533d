"""Certificates and keys of a federation: a CA, the SuperLink's certificate, and one key pair per node.

Node keys are elliptic curve P-384 in OpenSSH's format, as Flower wants them. Private keys are readable by their owner
alone. In a real federation every organisation makes its own pair with :func:`node_keys` and hands out the public half.
"""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID = timedelta(days=365)
LOOPBACK = ("localhost", "127.0.0.1")


def authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A new certificate authority: ``ca.crt`` for everybody, ``ca.key`` for nobody but its owner."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _certificate("KD3A federation CA", "KD3A federation CA", key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    _private(folder / "ca.key", _pem(key))
    (folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return certificate, key


def server(folder: Path, hosts: tuple[str, ...] = LOOPBACK) -> None:
    """A new authority and, signed by it, ``server.crt`` and ``server.key`` of a SuperLink at these hosts."""
    ca, ca_key = authority(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _certificate(hosts[0], ca.subject, key.public_key())
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    _private(folder / "server.key", _pem(key))
    (folder / "server.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def node_keys(folder: Path, name: str) -> Path:
    """A new pair for one node: ``name`` (private) and ``name.pub``; returns the path of the private one."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    ssh = serialization.PrivateFormat.OpenSSH
    _private(folder / name, key.private_bytes(serialization.Encoding.PEM, ssh, serialization.NoEncryption()))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public + b"\n")
    return folder / name


def _certificate(subject: str, issuer: str | x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    def named(name: str | x509.Name) -> x509.Name:
        return name if isinstance(name, x509.Name) else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(named(subject))
        .issuer_name(named(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(signs: bool) -> x509.KeyUsage:
    names = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    unused = dict.fromkeys((*names, "decipher_only"), False)
    return x509.KeyUsage(digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **unused)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _private(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
