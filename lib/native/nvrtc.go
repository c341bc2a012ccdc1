package native

/*
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTION(result, name, ...) \
	result (*name)(__VA_ARGS__) = (result (*)(__VA_ARGS__))dlsym(library, #name); \
	if (!name) return #name

// nvrtc_file returns the path of the library, or NULL if it is not NVRTC.
static const char *nvrtc_file(void *library) {
	Dl_info about;
	void *function = dlsym(library, "nvrtcCompileProgram");
	return function && dladdr(function, &about) ? about.dli_fname : NULL;
}

typedef struct { char *log, *cubin; size_t size; char **lowered; int failed; } nvrtc_result;

// nvrtc_compile compiles a source with one header, and lowers names. It returns the name of a function that the library
// lacks, or NULL; failed is NVRTC's error, 0 for none. The caller frees what it has allocated.
static const char *nvrtc_compile(void *library, const char *source, const char *header, int options,
		const char **option, int names, const char **name, nvrtc_result *r) {
	FUNCTION(int, nvrtcCreateProgram, void **, const char *, const char *, int, const char **, const char **);
	FUNCTION(int, nvrtcAddNameExpression, void *, const char *);
	FUNCTION(int, nvrtcCompileProgram, void *, int, const char **);
	FUNCTION(int, nvrtcGetProgramLogSize, void *, size_t *);
	FUNCTION(int, nvrtcGetProgramLog, void *, char *);
	FUNCTION(int, nvrtcGetLoweredName, void *, const char *, const char **);
	FUNCTION(int, nvrtcGetCUBINSize, void *, size_t *);
	FUNCTION(int, nvrtcGetCUBIN, void *, char *);
	FUNCTION(int, nvrtcDestroyProgram, void **);
	void *program = NULL;
	const char *called = "native.h";
	size_t size = 0;
	if ((r->failed = nvrtcCreateProgram(&program, source, "source.cu", 1, &header, &called))) return NULL;
	for (int i = 0; i < names && !r->failed; i++) r->failed = nvrtcAddNameExpression(program, name[i]);
	if (!r->failed) r->failed = nvrtcCompileProgram(program, options, option);
	if (!nvrtcGetProgramLogSize(program, &size) && (r->log = calloc(size + 1, 1))) nvrtcGetProgramLog(program, r->log);
	for (int i = 0; i < names && !r->failed; i++) {
		const char *lowered = NULL;
		if (!(r->failed = nvrtcGetLoweredName(program, name[i], &lowered))) r->lowered[i] = strdup(lowered);
	}
	if (!r->failed) r->failed = nvrtcGetCUBINSize(program, &r->size);
	if (!r->failed && (r->cubin = malloc(r->size))) r->failed = nvrtcGetCUBIN(program, r->cubin);
	nvrtcDestroyProgram(&program);
	return NULL;
}

static const char *nvrtc_error(void *library, int code) {
	const char *(*text)(int) = (const char *(*)(int))dlsym(library, "nvrtcGetErrorString");
	return text ? text(code) : "an error";
}
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"github.com/shardbook/shardbook/internal/cache"
	"github.com/shardbook/shardbook/internal/plugin"
)

// nvrtc is NVIDIA's compiler as a library, which needs no GPU and no driver.
type nvrtc struct {
	handle  unsafe.Pointer
	version string // identifies the file
	include string // the folder with the headers for half precision; "" if there is none
}

// findNVRTC loads the library that pip installed beside the plugin that is chosen or in the cache folder, the one that
// the loader finds, or that of a toolkit.
func findNVRTC() (nvrtc, error) {
	const site, name = "nvidia/cu*/lib", "libnvrtc.so.*"
	var patterns []string
	if chosen := os.Getenv(plugin.Env); filepath.IsAbs(chosen) { // site-packages/jax_plugins/xla_cuda13/….so
		patterns = append(patterns, filepath.Join(filepath.Dir(chosen), "..", "..", site, name))
	}
	if root, err := cache.Dir(""); err == nil {
		patterns = append(patterns, filepath.Join(root, "cuda", "*", "lib", "python3*", "site-packages", site, name))
	}
	patterns = append(patterns, "libnvrtc.so.13", "libnvrtc.so.12")
	for _, home := range []string{os.Getenv("CUDA_HOME"), "/usr/local/cuda"} {
		if home != "" {
			patterns = append(patterns, filepath.Join(home, "lib*", name)) // lib64; in pip's packages lib
		}
	}
	for _, pattern := range patterns {
		files := []string{pattern}
		if filepath.IsAbs(pattern) {
			files, _ = filepath.Glob(pattern)
		}
		for _, file := range files {
			// NVRTC has no path to this library of its own, and does not look beside itself.
			for _, own := range glob(filepath.Dir(file), "libnvrtc-builtins.so.*") {
				open(own)
			}
			if handle, err := open(file); err == nil {
				if n, ok := nvrtcOf(handle); ok {
					return n, nil
				}
			}
		}
	}
	return nvrtc{}, errors.New("native: NVRTC, NVIDIA's compiler as a library, is not there: run `shardbook setup --cuda`, or " +
		"pip install nvidia-cuda-nvrtc nvidia-cuda-runtime and set " + plugin.Env + " to the plugin in the same " +
		"environment, or install the CUDA toolkit")
}

func glob(elements ...string) []string {
	found, _ := filepath.Glob(filepath.Join(elements...))
	return found
}

func nvrtcOf(handle unsafe.Pointer) (n nvrtc, ok bool) {
	file := C.GoString(C.nvrtc_file(handle))
	version, err := versionOfFile(file)
	if err != nil {
		return n, false
	}
	n = nvrtc{handle: handle, version: version}
	beside := filepath.Join(filepath.Dir(file), "..")
	for _, folder := range []string{filepath.Join(beside, "include"),
		filepath.Join(beside, "..", "cuda_runtime", "include"), // in pip's packages of CUDA 12, beside cuda_nvrtc
		"/usr/local/cuda/include", "/usr/include"} {
		if len(glob(folder, "cuda_bf16.h")) > 0 {
			n.include = folder
			break
		}
	}
	return n, true
}

// compile compiles a source to machine code, and returns the names in it of kernels that C++ expressions name.
func (n nvrtc) compile(source string, options, names []string) (cubin []byte, lowered []string, err error) {
	var free []unsafe.Pointer
	defer func() {
		for _, p := range free {
			C.free(p)
		}
	}()
	text := func(s string) *C.char {
		c := C.CString(s)
		free = append(free, unsafe.Pointer(c))
		return c
	}
	texts := func(all []string) **C.char { // an array that is not Go's
		c := (**C.char)(C.calloc(C.size_t(len(all)+1), C.size_t(unsafe.Sizeof(uintptr(0)))))
		free = append(free, unsafe.Pointer(c))
		for i, s := range all {
			unsafe.Slice(c, len(all))[i] = text(s)
		}
		return c
	}
	r := C.nvrtc_result{lowered: texts(make([]string, len(names)))}
	lacks := C.nvrtc_compile(n.handle, text(source), text(header), C.int(len(options)), texts(options),
		C.int(len(names)), texts(names), &r)
	free = append(free, unsafe.Pointer(r.log), unsafe.Pointer(r.cubin))
	if lacks != nil {
		return nil, nil, fmt.Errorf("native: NVRTC (%s) has no function %s: install that of CUDA 12 or newer", n.version,
			C.GoString(lacks))
	}
	if r.failed != 0 {
		said := strings.TrimSpace(C.GoString(r.log))
		if len(said) > most {
			said = said[:most] + "…"
		}
		return nil, nil, fmt.Errorf("native: NVRTC does not compile the source (%s):\n%s",
			C.GoString(C.nvrtc_error(n.handle, r.failed)), said)
	}
	for _, c := range unsafe.Slice(r.lowered, len(names)) {
		free = append(free, unsafe.Pointer(c))
		lowered = append(lowered, C.GoString(c))
	}
	return slices.Clone(unsafe.Slice((*byte)(unsafe.Pointer(r.cubin)), r.size)), lowered, nil
}
