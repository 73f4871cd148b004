# The formula of the tap. packaging/build.sh inserts the version and the checksums.
class Outrigger < Formula
  desc "Puts programs on the network over WebSocket"
  homepage "@REPOSITORY@"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    on_arm do
      url "@REPOSITORY@/releases/download/v@VERSION@/outrigger-@VERSION@-aarch64-apple-darwin.tar.gz"
      sha256 "@SHA256:aarch64-apple-darwin@"
    end
    on_intel do
      url "@REPOSITORY@/releases/download/v@VERSION@/outrigger-@VERSION@-x86_64-apple-darwin.tar.gz"
      sha256 "@SHA256:x86_64-apple-darwin@"
    end
  end

  on_linux do
    on_arm do
      url "@REPOSITORY@/releases/download/v@VERSION@/outrigger-@VERSION@-aarch64-unknown-linux-musl.tar.gz"
      sha256 "@SHA256:aarch64-unknown-linux-musl@"
    end
    on_intel do
      url "@REPOSITORY@/releases/download/v@VERSION@/outrigger-@VERSION@-x86_64-unknown-linux-musl.tar.gz"
      sha256 "@SHA256:x86_64-unknown-linux-musl@"
    end
  end

  def install
    bin.install "outrigger"
    man1.install "man/outrigger.1"
    bash_completion.install "completions/outrigger.bash" => "outrigger"
    zsh_completion.install "completions/_outrigger"
    fish_completion.install "completions/outrigger.fish"
    doc.install Dir["docs/*"], "THIRD-PARTY-LICENSES"
  end

  test do
    assert_match "outrigger #{version}", shell_output("#{bin}/outrigger --version")
    assert_match "the settings are valid", shell_output("#{bin}/outrigger echo --check")
  end
end
