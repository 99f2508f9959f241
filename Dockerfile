# The image of a node: tweedd, tweedctl, the CNI plugin and its installer.
#   make image        from binaries that are compiled on this machine, without any registry
#   docker build .    from the source, in a container
FROM scratch AS image
ENV PATH=/opt/bin
ENTRYPOINT ["/opt/bin/flanneld"]

# Comes before the compiler, for builders that build every stage up to the target.
FROM image AS prebuilt
ARG TARGETARCH
COPY target/image/${TARGETARCH}/ /

FROM docker.io/library/rust:1.95.0-alpine AS compiler
RUN apk add --no-cache build-base protoc protobuf-dev
WORKDIR /src
COPY . .
# Programs of this or another machine that came with the source.
RUN rm -rf target
RUN config/release/compile

FROM image
COPY --from=compiler /src/target/image/*/ /
