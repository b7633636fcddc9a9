"""Gateways of this machine that speak TLS: their own certificate is believed, by whatever name they are reached."""

import ssl

from omnibus.errors import BadRequest


def trusted_context(certificate: str) -> ssl.SSLContext | None:
    """Return an SSL context that trusts the PEM file ``certificate`` and nothing else; None when it is empty.

    Whoever starts a gateway has its certificate. That it names another host, or which authority signed it, is the
    matter of clients. Raises ``BadRequest`` for a file without a certificate.
    """
    if not certificate:
        return None
    try:
        context = ssl.create_default_context(cafile=certificate)
    except OSError as error:  # ssl's own errors too
        raise BadRequest(f"OMNIBUS_GATEWAY_TLS_CERT={certificate}: {error.strerror or error}") from error
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself, whoever signed it
    return context
