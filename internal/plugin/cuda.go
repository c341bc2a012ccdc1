//go:build !resident

package plugin

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/pyenv"
)

// cudaRequirements pins XLA's plugin for CUDA, NVIDIA's libraries that it loads, and the compilers that it and our CUDA
// functions call, with hashes, for Linux on x86-64 and ARM. It is made from cuda.requirements.in by
//
//	uv pip compile --no-deps --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
//		cuda.requirements.in -o cuda.requirements.txt
//
//go:embed cuda.requirements.txt
var cudaRequirements string

// cudaBytes is the disk space that the installation needs at its peak: the wheels and what is unpacked.
const cudaBytes = 5.5e9

// inSite is where pip puts the plugin.
const inSite = "lib/python3*/site-packages/jax_plugins/xla_cuda*/xla_cuda_plugin.so"

// cudaPart is a Python environment for pip to install the plugin in. Nothing runs its Python, so any will do.
func cudaPart(root string) cache.Part {
	sum := sha256.Sum256([]byte(cudaRequirements))
	return cache.Part{Root: root, Name: "cuda", Version: fmt.Sprintf("%x", sum[:6]), Bytes: cudaBytes,
		Install: func(ctx context.Context, dir string, report cache.Progress) error {
			interpreter, _, err := pyenv.Find(ctx, "3.10")
			if err != nil {
				return err
			}
			return pyenv.Install(ctx, interpreter, dir, cudaRequirements, report, "--no-deps", "--no-cache-dir",
				"--only-binary=:all:")
		}}
}

// InstallCUDA installs the plugin for CUDA and NVIDIA's libraries into the cache folder root, if they are not there.
func InstallCUDA(ctx context.Context, root string, report cache.Progress) error {
	if system := runtime.GOOS + "/" + runtime.GOARCH; system != "linux/amd64" && system != "linux/arm64" {
		return fmt.Errorf("there is no plugin for CUDA for %s, only for linux/amd64 and linux/arm64: use the CPU",
			system)
	}
	_, err := cudaPart(root).Ensure(ctx, report)
	return err
}

// findCUDA returns the plugin that InstallCUDA has installed.
func findCUDA(root string) (Plugin, bool) {
	dir, _ := cudaPart(root).Installed()
	found, _ := filepath.Glob(filepath.Join(dir, inSite))
	if dir == "" || len(found) == 0 {
		return Plugin{}, false
	}
	title, _, _ := strings.Cut(cudaRequirements, " ")
	return Plugin{Path: found[0], Platform: CUDA,
		Source: "cache, " + strings.Replace(title, "==", " ", 1) + " from PyPI"}, true
}

// site is the folder site-packages of a plugin from pip: that of jax_plugins/xla_cuda13/xla_cuda_plugin.so. The plugin
// has paths from itself to NVIDIA's libraries there (RPATH), so that the loader finds them.
func (p Plugin) site(pattern ...string) []string {
	site := filepath.Dir(filepath.Dir(filepath.Dir(p.Path)))
	found, _ := filepath.Glob(filepath.Join(append([]string{site, "nvidia"}, pattern...)...))
	return found
}

// cudaLibraries are NVIDIA's libraries, by the file names of CUDA 13.
var cudaLibraries = []struct {
	file string
	use  string // what does not work without it; "" if nothing does
}{
	{"libcudart.so.13", ""},
	{"libcublas.so.13", ""},
	{"libcublasLt.so.13", ""},
	{"libcudnn.so.9", ""},
	{"libcufft.so.12", "Fourier transforms"},
	{"libcusolver.so.12", "decompositions of matrices"},
	{"libcusparse.so.12", "sparse matrices"},
	{"libnccl.so.2", "collectives between GPUs"},
	{"libnvrtc.so.13", "kernels compiled at run time"},
	{"libcupti.so.13", "profiles"},
}

// Missing lists what a plugin for CUDA 13 needs and neither pip nor the system has: what nothing works without, and
// what something does.
func (p Plugin) Missing() (all, some []string) {
	if p.CUDA() != NewestCUDA {
		return nil, nil
	}
	for _, l := range cudaLibraries {
		switch {
		case len(p.site("*", "lib", l.file)) > 0 || loads(l.file):
		case l.use == "":
			all = append(all, l.file)
		default:
			some = append(some, l.file+" ("+l.use+")")
		}
	}
	if p.Assembler() == "" {
		all = append(all, "ptxas")
	}
	if !p.hasBitcode() {
		all = append(all, "libdevice")
	}
	return all, some
}

// hasBitcode reports whether NVIDIA's library of functions for compilers is where XLA looks. Without it XLA crashes or
// does not compile.
func (p Plugin) hasBitcode() bool {
	if len(p.bitcode()) > 0 || strings.Contains(os.Getenv("XLA_FLAGS"), cudaFlag) {
		return true
	}
	found, _ := filepath.Glob("/usr/local/cuda*/nvvm/libdevice/libdevice*.bc")
	return len(found) > 0
}

// bitcode lists pip's folders with that library.
func (p Plugin) bitcode() []string {
	return slices.Concat(p.site("cu[0-9]*", "nvvm", "libdevice"), p.site("cuda_nvcc", "nvvm", "libdevice"))
}

// complete returns an error that names what the plugin needs and nobody has installed.
func (p Plugin) complete() error {
	if missing, _ := p.Missing(); len(missing) > 0 {
		return fmt.Errorf("plugin %q needs %s, which are not installed: run `shardbook setup --cuda`, which installs "+
			"a plugin with all of them", p.Path, strings.Join(missing, ", "))
	}
	return nil
}

// Assembler returns the path of ptxas, without which XLA compiles nothing: pip's, that of the system's toolkit, or that
// on the PATH. It is "" if there is none.
func (p Plugin) Assembler() string {
	for _, path := range append(p.site("c*", "bin", "ptxas"), "/usr/local/cuda/bin/ptxas", "ptxas") {
		if found, err := exec.LookPath(path); err == nil {
			return found
		}
	}
	return ""
}

// versionInFolder matches the version of CUDA in the folder xla_cuda13.
var versionInFolder = regexp.MustCompile(`^xla_cuda(\d+)$`)

// CUDA is the major version of CUDA that the plugin was built for, 0 if its path does not tell.
func (p Plugin) CUDA() int {
	found := versionInFolder.FindStringSubmatch(filepath.Base(filepath.Dir(p.Path)))
	if found == nil {
		return 0
	}
	version, _ := strconv.Atoi(found[1])
	return version
}

// Driver returns the driver and the GPUs for a CUDA plugin, or an error that says what the plugin cannot start without.
func (p Plugin) Driver() (Driver, error) {
	d, err := AskDriver(p.CUDA())
	if err != nil {
		return d, err
	}
	return d, p.complete()
}

// cudaFlag is XLA's flag for the folder of the CUDA tools that it compiles with (ptxas, libdevice).
const cudaFlag = "--xla_gpu_cuda_data_dir"

// FindCUDA makes a CUDA plugin from pip use the compiler that pip installed with it (nvidia-cuda-nvcc), by setting
// XLA_FLAGS of this process. It does nothing if there is no such compiler or the flag is set already; XLA then looks in
// /usr/local/cuda, and fails to compile if there is no compiler either.
func (p Plugin) FindCUDA() {
	flags := os.Getenv("XLA_FLAGS")
	if p.Platform != CUDA || strings.Contains(flags, cudaFlag) {
		return
	}
	if compilers := p.bitcode(); len(compilers) > 0 {
		folder := filepath.Dir(filepath.Dir(compilers[0]))
		os.Setenv("XLA_FLAGS", strings.TrimSpace(flags+" "+cudaFlag+"="+folder))
	}
}
