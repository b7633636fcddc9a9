"""TLS to gateways of this machine: their own certificate is trusted, for every host name."""

import ssl

from omnibus.errors import BadRequest


def trusted_context(certificate: str) -> ssl.SSLContext | None:
    """Return an SSL context that trusts only the PEM file ``certificate``. None if ``certificate`` is empty.

    The process that starts a gateway has its certificate. The host name and the authority in it matter to other clients
    only. Raises ``BadRequest`` for a file without a certificate.
    """
    if not certificate:
        return None
    try:
        context = ssl.create_default_context(cafile=certificate)
    except OSError as error:  # includes the errors of ssl
        raise BadRequest(f"OMNIBUS_GATEWAY_TLS_CERT={certificate}: {error.strerror or error}") from error
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # trust the certificate itself, with any issuer
    return context
