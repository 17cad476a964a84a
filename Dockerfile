# gradus as one binary on a small Debian, run by a user without rights. How to use it: docs/docker.md.

# The compiler is that of rust-toolchain.toml; the image also has the C compiler that SQLite and zstd are built with.
FROM rust:1.95.0-slim-trixie AS build
WORKDIR /gradus
COPY . .
# What is compiled stays in the cache of the builder, so that a changed line does not compile everything anew.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/gradus/target \
    cargo build --release --locked --package gradus-cli && cp target/release/gradus /usr/local/bin/gradus

FROM debian:trixie-slim
# Certificates are compiled in; nothing else is needed beside the binary. The user's number is fixed, for the rights of what is mounted.
RUN useradd --uid 1000 --create-home --home-dir /home/gradus gradus && mkdir /work /models && chown gradus /work /models
COPY --from=build /usr/local/bin/gradus /usr/local/bin/gradus
USER gradus
# Runs are written here, and what comes from the hub there.
WORKDIR /work
ENV HF_HOME=/models
EXPOSE 8080
# A run that is asked to stop writes a checkpoint first: the same signal as Ctrl-C.
STOPSIGNAL SIGINT
ENTRYPOINT ["gradus"]
CMD ["--help"]
