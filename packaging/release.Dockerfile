# The image of a release: the static program of the release's archive, without a shell or any other program. To run a program
# behind it, copy /outrigger into that program's image. examples/deploy/Dockerfile builds the same from the sources.
#
# The context has a folder for each processor, amd64 and arm64, with the files of the archive.
FROM scratch
ARG TARGETARCH
COPY ${TARGETARCH}/outrigger ${TARGETARCH}/LICENSE-APACHE ${TARGETARCH}/LICENSE-MIT /
LABEL org.opencontainers.image.title="Outrigger" org.opencontainers.image.licenses="MIT OR Apache-2.0"
USER 65534:65534
EXPOSE 7070
ENTRYPOINT ["/outrigger"]
CMD ["echo", "--listen", "0.0.0.0:7070"]
