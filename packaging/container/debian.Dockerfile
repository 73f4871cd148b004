# The program with bash and the tools of Debian, for terminals and processes, or as the base of your own image.
#
# The context is a folder with the unpacked archive of each processor: amd64/ and arm64/ (packaging/build.sh image).
FROM debian:bookworm-slim
ARG TARGETARCH=amd64
# The release workflow passes the program on as an artifact, which loses its file mode.
COPY --chmod=755 ${TARGETARCH}/outrigger /usr/local/bin/outrigger
COPY ${TARGETARCH}/THIRD-PARTY-LICENSES ${TARGETARCH}/LICENSE-MIT ${TARGETARCH}/LICENSE-APACHE /usr/local/share/doc/outrigger/
RUN useradd --create-home --uid 10000 --shell /bin/bash outrigger
USER outrigger
WORKDIR /home/outrigger
ENV SHELL=/bin/bash
EXPOSE 7070
ENTRYPOINT ["/usr/local/bin/outrigger"]
CMD ["terminal", "--listen", "0.0.0.0:7070", "--", "bash", "-l"]
