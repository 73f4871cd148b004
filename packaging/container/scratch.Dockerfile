# The program alone: 4 MB, no shell, no other program. Serve a program of another image by copying /outrigger into it, or derive the
# image of your program from outrigger:debian.
#
# The context is a folder with the unpacked archive of each processor: amd64/ and arm64/ (packaging/build.sh image).
FROM scratch
ARG TARGETARCH=amd64
# The release workflow passes the program on as an artifact, which loses its file mode.
COPY --chmod=755 ${TARGETARCH}/outrigger /outrigger
COPY ${TARGETARCH}/THIRD-PARTY-LICENSES ${TARGETARCH}/LICENSE-MIT ${TARGETARCH}/LICENSE-APACHE /licenses/
USER 65534:65534
EXPOSE 7070
ENTRYPOINT ["/outrigger"]
CMD ["demo", "--listen", "0.0.0.0:7070"]
