"""Makes tokens.json: keys and tokens of other implementations (PyJWT, jwcrypto) for every algorithm.

The file is part of the repository, so the tests need neither Python nor these packages:
pip install pyjwt cryptography jwcrypto && python3 make_tokens.py > tokens.json
"""

import base64
import json
import os

import jwt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from jwcrypto import jwe, jwk

CLAIMS = {"iss": "other", "sub": "someone", "exp": 4102444800, "roles": ["a", "b"], "info": {"job title": "x"}}

keys = [
    jwk.JWK.generate(kty="oct", size=128, kid="oct16"),
    jwk.JWK.generate(kty="oct", size=192, kid="oct24"),
    jwk.JWK.generate(kty="oct", size=256, kid="oct32"),
    jwk.JWK.generate(kty="oct", size=384, kid="oct48"),
    jwk.JWK.generate(kty="oct", size=512, kid="oct64"),
    jwk.JWK.generate(kty="RSA", size=2048, kid="rsa"),
    jwk.JWK.generate(kty="EC", crv="P-256", kid="p256"),
    jwk.JWK.generate(kty="EC", crv="P-384", kid="p384"),
    jwk.JWK.generate(kty="EC", crv="P-521", kid="p521"),
    jwk.JWK.generate(kty="OKP", crv="Ed25519", kid="ed25519"),
]
by_id = {key["kid"]: key for key in keys}


def signed(alg, kid, **more):
    key = jwt.PyJWK(json.loads(by_id[kid].export()), alg).key
    token = jwt.encode({**CLAIMS, **more}, key, alg, headers={"kid": kid})
    return {"alg": alg, "kid": kid, "token": token}


def encrypted(alg, enc, kid, content):
    protected = {"alg": alg, "enc": enc, "kid": kid}
    token = jwe.JWE(content, json.dumps(protected))
    token.allowed_algs = [alg, enc]
    token.add_recipient(by_id[kid])
    return {"alg": alg, "enc": enc, "kid": kid, "token": token.serialize(compact=True)}


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def oaep(alg, sha, content):
    """jwcrypto does not have these two hashes."""
    header = base64url(json.dumps({"alg": alg, "enc": "A256GCM", "kid": "rsa"}).encode())
    key, iv = os.urandom(32), os.urandom(12)
    scheme = padding.OAEP(mgf=padding.MGF1(sha), algorithm=sha, label=None)
    wrapped = by_id["rsa"].get_op_key("wrapKey").encrypt(key, scheme)
    sealed = AESGCM(key).encrypt(iv, content.encode(), header.encode())
    token = ".".join([header] + [base64url(part) for part in (wrapped, iv, sealed[:-16], sealed[-16:])])
    return {"alg": alg, "enc": "A256GCM", "kid": "rsa", "token": token}


SIGNED = [
    ("HS256", "oct32"), ("HS384", "oct48"), ("HS512", "oct64"),
    ("RS256", "rsa"), ("RS384", "rsa"), ("RS512", "rsa"),
    ("PS256", "rsa"), ("PS384", "rsa"), ("PS512", "rsa"),
    ("ES256", "p256"), ("ES384", "p384"), ("ES512", "p521"),
    ("EdDSA", "ed25519"),
]
CONTENT = {
    "A128CBC-HS256": 32, "A192CBC-HS384": 48, "A256CBC-HS512": 64,
    "A128GCM": 16, "A192GCM": 24, "A256GCM": 32,
}
WRAPPED = [
    ("A128KW", "oct16"), ("A192KW", "oct24"), ("A256KW", "oct32"),
    ("A128GCMKW", "oct16"), ("A192GCMKW", "oct24"), ("A256GCMKW", "oct32"),
    ("RSA-OAEP", "rsa"), ("RSA-OAEP-256", "rsa"),
]
claims = json.dumps(CLAIMS)
public = [json.loads(key.export_public() if key["kty"] != "oct" else key.export()) for key in keys]
print(json.dumps({
    "public": {"keys": public},
    "private": {"keys": [json.loads(key.export()) for key in keys]},
    "signed": [signed(*row) for row in SIGNED],
    "encrypted": [encrypted("dir", enc, f"oct{length}", claims) for enc, length in CONTENT.items()]
    + [encrypted(alg, enc, kid, claims) for alg, kid in WRAPPED for enc in CONTENT]
    + [oaep("RSA-OAEP-384", hashes.SHA384(), claims), oaep("RSA-OAEP-512", hashes.SHA512(), claims)],
    # Expired in 2023, valid from 2099 on, and with another subject.
    "other": [
        signed("ES256", "p256", exp=1700000000),
        signed("ES256", "p256", nbf=4102444700),
        signed("ES256", "p256", sub="another", admin=True),
        signed("ES256", "p256", sub="line\r\nX-Injected: 1"),
    ],
    "nested": [encrypted("A256KW", "A256GCM", "oct32", signed("ES256", "p256")["token"])],
}, indent=1))
