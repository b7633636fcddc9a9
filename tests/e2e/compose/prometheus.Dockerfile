# Prometheus from Debian's package, for machines that cannot pull the official image: the program alone, which needs
# nothing but libc, and wget, with which the layer's health check looks.
FROM python:3.11-slim-bookworm
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends wget && cd /tmp && apt-get download -qq prometheus \
    && dpkg -x prometheus_*.deb /opt/prometheus && ln -s /opt/prometheus/usr/bin/prometheus /usr/local/bin/ \
    && install -d -o nobody -g nogroup /prometheus && rm -rf /tmp/* /var/lib/apt/lists/*
USER nobody
ENTRYPOINT ["prometheus"]
