# The operator's image. `make docker-build IMG=...` builds it for this machine, `make docker-buildx IMG=...` for all PLATFORMS:
# the compiler always runs on the machine's own architecture, and cross-compiles for the other one.
#
# The tags of the two base images move. To pin an image, write NAME:TAG@sha256:DIGEST (`docker buildx imagetools inspect NAME:TAG`
# prints the digest for all architectures). Dependabot then offers newer ones.
FROM --platform=$BUILDPLATFORM rust:1.95-bookworm AS builder
ARG BUILDARCH
ARG TARGETARCH
WORKDIR /workspace

RUN set -eu; \
    case "$TARGETARCH" in \
      amd64) machine=x86_64 package=x86-64 ;; \
      arm64) machine=aarch64 package=aarch64 ;; \
      *) echo "no build for $TARGETARCH: amd64 and arm64 are known" >&2; exit 1 ;; \
    esac; \
    mkdir .cargo; \
    printf '[build]\ntarget = "%s-unknown-linux-gnu"\n' "$machine" >.cargo/config.toml; \
    if [ "$TARGETARCH" != "$BUILDARCH" ]; then \
      rustup target add "$machine-unknown-linux-gnu"; \
      apt-get update; \
      apt-get install --yes --no-install-recommends "gcc-$package-linux-gnu" "libc6-dev-$TARGETARCH-cross"; \
      printf '[target.%s-unknown-linux-gnu]\nlinker = "%s-linux-gnu-gcc"\n' "$machine" "$machine" >>.cargo/config.toml; \
    fi

# The dependencies: this layer changes only with these files. cargo needs a source file in each member.
COPY Cargo.toml Cargo.lock hack/release.toml ./
COPY testbed/Cargo.toml testbed/
COPY xtask/Cargo.toml xtask/
COPY crates/core/Cargo.toml crates/core/
COPY crates/api/Cargo.toml crates/api/
COPY crates/runtime/Cargo.toml crates/runtime/
COPY crates/notify/Cargo.toml crates/notify/
COPY crates/aws/Cargo.toml crates/aws/
RUN mkdir -p src testbed/src benches/figures tests/torture; \
    for member in . testbed xtask crates/*; do mkdir -p "$member/src"; touch "$member/src/lib.rs"; done; \
    for main in src testbed/src benches/figures tests/torture; do echo 'fn main() {}' >"$main/main.rs"; done; \
    cargo build --config release.toml --release --locked --package quartermaster

COPY crates crates
COPY src src
COPY deploy/admission_policies.yaml deploy/crd.yaml deploy/
# cargo compares times, and the files of the checkout are older than the build above.
RUN touch src/main.rs src/lib.rs crates/*/src/lib.rs; \
    cargo build --config release.toml --release --locked --package quartermaster; \
    mv target/*/release/quartermaster /quartermaster

# The image has glibc and the certificates of public authorities, but no shell.
FROM gcr.io/distroless/cc-debian12:nonroot
LABEL org.opencontainers.image.title=quartermaster \
      org.opencontainers.image.description="Notifies on field changes, copies ConfigMaps, runs simple apps and provisions AWS load balancers" \
      org.opencontainers.image.licenses=Apache-2.0
COPY LICENSE /LICENSE
COPY --from=builder /quartermaster /quartermaster
# One heap for all threads: a second heap costs about a mebibyte and makes nothing faster.
ENV MALLOC_ARENA_MAX=1
USER 65532:65532
ENTRYPOINT ["/quartermaster"]
