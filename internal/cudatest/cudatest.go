// Package cudatest has a driver and a compiler of CUDA's that run kernels on this machine's processor, for tests
// without a GPU.
package cudatest

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/plugin"
)

//go:embed *.h driver.cu
var files embed.FS

// Driver is the driver, with counts of what was done with it.
type Driver struct{ library string }

// Alone runs the test again in a process of its own, with CPU devices and an empty cache folder, and reports whether
// this is that process.
func Alone(t *testing.T) bool {
	t.Helper()
	const env = "SHARDBOOK_TEST_DRIVER"
	if os.Getenv(env) == t.Name() {
		return true
	}
	root, err := cache.Dir("")
	must.Do(t, err)
	cpu := must.Get(plugin.Find(string(plugin.CPU), root))(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), env+"="+t.Name(), plugin.Env+"="+cpu.Path, cache.EnvDir+"="+t.TempDir())
	output, err := cmd.CombinedOutput()
	if t.Logf("%s", output); err != nil {
		t.Errorf("in a process of its own: %v", err)
	}
	return false
}

// Load compiles a driver with the kernels of a CUDA source that expressions name, and loads it: the process's
// libcuda.so.1 is this from now on. NVRTC is this too where lib/native finds none before $CUDA_HOME. The folder must
// stay.
func Load(folder, source string, kernels ...string) (d Driver, err error) {
	all, err := files.ReadDir(".")
	if err != nil {
		return d, err
	}
	contents := map[string]string{"source.cu": "#line 1 \"source.cu\"\n" + source,
		"kernels.inc": "KERNEL(" + strings.Join(kernels, "),\nKERNEL(") + ")\n"}
	for _, file := range all {
		text, err := files.ReadFile(file.Name())
		if err != nil {
			return d, err
		}
		contents[file.Name()] = string(text)
	}
	for name, text := range contents {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			return d, err
		}
	}
	_, here, _, ok := runtime.Caller(0)
	if !ok {
		return d, errors.New("the checkout is not known")
	}
	lib := filepath.Join(folder, "lib64") // as in a toolkit
	d.library = filepath.Join(lib, "libcuda.so.1")
	if err := errors.Join(os.Mkdir(lib, 0o755), os.Symlink(d.library, filepath.Join(lib, "libnvrtc.so.13")),
		os.Symlink(folder, filepath.Join(folder, "include"))); err != nil {
		return d, err
	}
	said, err := exec.Command("g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-I", folder,
		"-I", filepath.Join(filepath.Dir(here), "..", "..", "lib", "native"), "-o", d.library, "-x", "c++",
		filepath.Join(folder, "driver.cu"), "-ldl").CombinedOutput()
	if err != nil {
		return d, fmt.Errorf("g++ does not compile the driver: %w\n%s", err, said)
	}
	if _, err = plugin.Symbol(d.library, "cuInit"); err != nil {
		return d, err
	}
	return d, os.Setenv("CUDA_HOME", folder)
}

// Int returns one of the driver's variables of type int, such as gpu_launches.
func (d Driver) Int(name string) *int32 {
	at, err := plugin.Symbol(d.library, name)
	if err != nil {
		panic(err)
	}
	return (*int32)(at)
}

// Stream returns the stream of the last launch.
func (d Driver) Stream() uintptr {
	at, err := plugin.Symbol(d.library, "gpu_stream")
	if err != nil {
		panic(err)
	}
	return *(*uintptr)(unsafe.Pointer(at))
}
