# The image of a node: daemon, operator's tool, CNI plugin, and what puts the last on a host.
#   make image        from binaries that are built here, without asking any registry
#   docker build .    from the source, in a container
FROM scratch AS image
ENV PATH=/opt/bin
ENTRYPOINT ["/opt/bin/flanneld"]

# Stands before the compiler: builders that make every stage on the way stop here.
FROM image AS prebuilt
COPY target/image/ /

FROM docker.io/library/rust:1.95.0-alpine AS compiler
RUN apk add --no-cache build-base protoc protobuf-dev
WORKDIR /src
COPY . .
RUN config/image/compile

FROM image
COPY --from=compiler /src/target/image/ /
