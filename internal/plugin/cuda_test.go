package plugin

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/pyenv"
	"github.com/shardbook/shardbook/internal/systest"
)

// What is pinned is what is asked for, with hashes of the files for both processors.
func TestCUDARequirements(t *testing.T) {
	pins := regexp.MustCompile(`(?m)^\S+==\S+`).FindAllString(cudaRequirements, -1)
	asked := strings.Fields(string(must.Get(os.ReadFile("cuda.requirements.in"))(t)))
	if !slices.Equal(pins, asked) || len(pins) != pyenv.Packages(cudaRequirements) {
		t.Errorf("pinned: %q, asked for: %q", pins, asked)
	}
	for _, block := range strings.Split(cudaRequirements, "\n"+"nvidia-") {
		if strings.Count(block, "--hash=sha256:") < 2 {
			t.Errorf("fewer than two hashes: %s", block)
		}
	}
}

// pipOfCUDA stands for a Python whose pip installs a plugin with the files of a site that FILES lists.
const pipOfCUDA = `#!/bin/sh
case "$*" in
*"-m venv"*) for dir; do :; done; mkdir -p "$dir/bin" && cp "$0" "$dir/bin/python" ;;
*"-m pip install"*--require-hashes*--no-deps*)
	echo "Collecting nvidia-cublas==13.1.0.3 (from -r x (line 4))"
	echo "  Downloading https://x/nvidia_cublas-13.1.0.3-py3-none-any.whl (542.1 MB)"
	site=$(dirname "$0")/../lib/python3.99/site-packages
	for file in FILES; do mkdir -p "$(dirname "$site/$file")" && echo >"$site/$file" && chmod 755 "$site/$file"; done ;;
*-m*) exit 1 ;;
*) echo /PYTHON; echo 3.99.0; echo True; echo venv ;;
esac
`

// installed installs a CUDA plugin with other files beside it into a cache folder.
func installed(t *testing.T, files ...string) (root string) {
	t.Helper()
	bin, root := t.TempDir(), t.TempDir()
	python := filepath.Join(bin, "python3")
	files = append(files, "jax_plugins/xla_cuda13/xla_cuda_plugin.so")
	script := strings.NewReplacer("FILES", strings.Join(files, " "), "/PYTHON", python).Replace(pipOfCUDA)
	must.Do(t, os.WriteFile(python, []byte(script), 0o755))
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	var said []string
	must.Do(t, InstallCUDA(t.Context(), root, func(_, _ int, what string) { said = append(said, what) }))
	if !slices.Contains(said, "downloading nvidia_cublas (542.1 MB)") {
		t.Errorf("the progress: %q", said)
	}
	return root
}

// What set-up installs is found by name, and by default where there is a GPU.
func TestInstallCUDA(t *testing.T) {
	elsewhere(t)
	t.Setenv("CUDA_VISIBLE_DEVICES", "0")
	_, err := Find("cuda", t.TempDir())
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "run `shardbook setup --cuda`") {
		t.Errorf("nothing is installed: %v", err)
	}
	root := installed(t)
	machine(t, 1)
	for _, want := range []string{"", "cuda"} {
		p, err := Find(want, root)
		if err != nil || p.Platform != CUDA || p.CUDA() != 13 || p.Source != "cache, jax-cuda13-pjrt 0.11.2 from PyPI" {
			t.Errorf("%q with a GPU: %+v, %v", want, p, err)
		}
	}
	machine(t, 0)
	if p, err := Find("", root); !errors.Is(err, ErrNotFound) || p.Platform == CUDA {
		t.Errorf("without a GPU: %+v, %v", p, err)
	}
}

// A plugin alone, and with NVIDIA's libraries, on a machine with a driver.
func TestMissing(t *testing.T) {
	elsewhere(t)
	machine(t, 1, "-DVERSION=13000", "-DINIT=0")
	if _, err := exec.LookPath("/usr/local/cuda/bin/ptxas"); err == nil || loads("libcublas.so.13") {
		systest.Skip(t, systest.System, "this machine has CUDA's libraries of its own")
	}
	p := must.Get(Find("cuda", installed(t)))(t)
	_, err := p.Driver()
	if want := "needs libcudart.so.13, libcublas.so.13, libcublasLt.so.13, libcudnn.so.9, ptxas, libdevice, which are not " +
		"installed: run `shardbook setup --cuda`"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
	if all, some := p.Missing(); len(all) != 6 || len(some) != 6 || some[3] != "libnccl.so.2 (collectives between GPUs)" {
		t.Errorf("missing: %q, %q", all, some)
	}
	p = must.Get(Find("cuda", installed(t, "nvidia/cu13/lib/libcudart.so.13", "nvidia/cu13/lib/libcublas.so.13",
		"nvidia/cu13/lib/libcublasLt.so.13", "nvidia/cudnn/lib/libcudnn.so.9", "nvidia/cu13/bin/ptxas",
		"nvidia/cu13/nvvm/libdevice/libdevice.10.bc")))(t)
	if d, err := p.Driver(); err != nil || len(d.GPUs) != 2 {
		t.Errorf("with the libraries: %+v, %v", d, err)
	}
	p.Path = filepath.Join(filepath.Dir(p.Path), "..", "xla_cuda12", "xla_cuda_plugin.so")
	if all, some := p.Missing(); all != nil || some != nil {
		t.Errorf("of a plugin for CUDA 12, whose libraries have other names: %q, %q", all, some)
	}
}

// Where set-up has installed the plugin for CUDA, the loader finds all libraries by the paths in the plugin.
func TestInstalledCUDA(t *testing.T) {
	p, ok := findCUDA(must.Get(cache.Dir(""))(t))
	if !ok {
		systest.Skip(t, systest.System, "the plugin for CUDA is not installed: go run ./cmd/shardbook setup --cuda")
	}
	file := must.Get(elf.Open(p.Path))(t)
	defer file.Close()
	paths := must.Get(file.DynString(elf.DT_RPATH))(t)
	folders := filepath.SplitList(strings.ReplaceAll(strings.Join(paths, ":"), "$ORIGIN", filepath.Dir(p.Path)))
	for _, l := range cudaLibraries {
		if !slices.ContainsFunc(folders, func(folder string) bool { return loads(filepath.Join(folder, l.file)) }) {
			t.Errorf("%s is in none of %q, or cannot be loaded", l.file, folders)
		}
	}
	if p.Assembler() == "" {
		t.Error("no ptxas")
	}
}

func TestFindCUDA(t *testing.T) {
	site := t.TempDir()
	compiler := filepath.Join(site, "nvidia", "cu13")
	must.Do(t, os.MkdirAll(filepath.Join(compiler, "nvvm", "libdevice"), 0o755))
	inSite := filepath.Join(site, "jax_plugins", "xla_cuda13", "xla_cuda_plugin.so")
	elsewhere := filepath.Join(t.TempDir(), "a", "b", "xla_cuda_plugin.so")
	for _, c := range []struct {
		p            Plugin
		before, want string
	}{
		{Plugin{Path: inSite, Platform: CUDA}, "", cudaFlag + "=" + compiler},
		{Plugin{Path: inSite, Platform: CUDA}, "--xla_dump_to=x", "--xla_dump_to=x " + cudaFlag + "=" + compiler},
		{Plugin{Path: inSite, Platform: CUDA}, cudaFlag + "=/mine", cudaFlag + "=/mine"},
		{Plugin{Path: inSite, Platform: CPU}, "", ""},
		{Plugin{Path: elsewhere, Platform: CUDA}, "", ""},
	} {
		t.Setenv("XLA_FLAGS", c.before)
		if c.p.FindCUDA(); os.Getenv("XLA_FLAGS") != c.want {
			t.Errorf("%v: XLA_FLAGS=%q becomes %q, want %q", c.p, c.before, os.Getenv("XLA_FLAGS"), c.want)
		}
	}
}
