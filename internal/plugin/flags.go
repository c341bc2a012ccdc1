//go:build !resident

package plugin

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// flag is an XLA flag that we set.
type flag struct {
	name, value string
	only        Platform // "": for all
}

func (f flag) String() string { return "--" + f.name + "=" + f.value }

// flags are set before XLA is loaded.
var flags = []flag{
	// Which operations XLA hands to YNNPACK in one fusion. Some of those fusions read memory that nobody wrote
	// (openxla/xla#48378, jax#39103) and return garbage without an error, so the list is emptied.
	{name: "xla_cpu_experimental_ynn_fusion_type", only: CPU},
	// XLA would leave out a conversion to half precision and back within a program, but not between two programs. On
	// CPUs programs would show no overflow, underflow or rounding of half precision. Everywhere a step that is split
	// into programs would round where one program does not, and on GPUs activations between kernels may become float32.
	{name: "xla_allow_excess_precision", value: "false"},
}

// setByUs are the flags in $XLA_FLAGS that are ours. The mutex loading guards it.
var setByUs []flag

// setFlags adds our flags to $XLA_FLAGS, except those that the user has set. It must run before the plugin is loaded,
// because XLA reads the variable once. XLA ends the process at an unknown flag, so a flag is set only if the library
// contains its name.
func setFlags(p Plugin) error {
	words := strings.Fields(os.Getenv("XLA_FLAGS"))
	words = slices.DeleteFunc(words, func(w string) bool {
		return slices.ContainsFunc(setByUs, func(f flag) bool { return f.String() == w })
	})
	setByUs = nil
	for _, f := range flags {
		given := slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, "--"+f.name) })
		if given || f.only != "" && f.only != p.Platform {
			continue
		}
		known := p.knowsFlags // searching 200 MB takes longer than opening a backend
		if !known {
			var err error
			if known, err = contains(p.Path, f.name); err != nil {
				return fmt.Errorf("plugin %q: %w", p.Path, err)
			}
		}
		if known {
			setByUs = append(setByUs, f)
		}
	}
	for _, f := range setByUs {
		words = append(words, f.String())
	}
	return os.Setenv("XLA_FLAGS", strings.Join(words, " "))
}

// contains reports whether the file holds the text.
func contains(path, text string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return false, err
	}
	content, err := unix.Mmap(int(file.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return false, err
	}
	defer unix.Munmap(content)
	return bytes.Contains(content, []byte(text)), nil
}
