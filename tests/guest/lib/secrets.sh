# shellcheck shell=bash
# Sourced by `run`: what clients of iSCSI and NBD in the guest prove themselves with.

# An authority, the server's certificate for NBD, and in the directory that the guest sees, that of a client.
certificates_make() {
    need openssl:openssl
    mkdir "$work/tls" "$work/ca" "$work/host/tls"
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout "$work/ca/key" -out "$work/ca/cert" 2>/dev/null
    cp "$work/ca/cert" "$work/tls/clients.pem"
    cp "$work/ca/cert" "$work/host/tls/ca.pem"
    certificate server.example.com "$work/tls/key.pem" "$work/tls/certificate.pem"
    certificate guest.example.com "$work/host/tls/key.pem" "$work/host/tls/cert.pem"
}
# certificate NAME KEY CERTIFICATE
certificate() {
    openssl req -newkey rsa:2048 -nodes -subj "/CN=$1" -keyout "$2" -out "$work/ca/request" 2>/dev/null
    openssl x509 -req -in "$work/ca/request" -CA "$work/ca/cert" -CAkey "$work/ca/key" -CAcreateserial -days 2 \
        -extfile <(echo "subjectAltName=DNS:$1") -out "$3" 2>/dev/null
}
