package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// ynnFusion chooses which operations XLA:CPU hands to YNNPACK in one fusion. Some
// of those fusions read memory that nobody wrote (openxla/xla#48378, jax#39103)
// and return garbage without an error, so the list is emptied.
const ynnFusion = "xla_cpu_experimental_ynn_fusion_type"

// setFlags adds the flags that make the plugin compute rightly to $XLA_FLAGS,
// unless the user set them. It must run before the plugin is loaded: XLA reads
// the variable once. A plugin ends the process at a flag that it does not know,
// so the flag is set only for a library that holds its name, as the pinned ones do.
func setFlags(p Plugin) error {
	flags := os.Getenv("XLA_FLAGS")
	if strings.Contains(flags, ynnFusion) {
		return nil
	}
	if !p.pinned { // searching 200 MB takes longer than opening a backend
		known, err := contains(p.Path, ynnFusion)
		if err != nil {
			return fmt.Errorf("plugin %q: %w", p.Path, err)
		}
		if !known {
			return nil
		}
	}
	return os.Setenv("XLA_FLAGS", strings.TrimSpace(flags+" --"+ynnFusion+"="))
}

// contains reports whether the file holds the text.
func contains(path, text string) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	// Blocks overlap by the text's length, so that one cut in two is found.
	block := make([]byte, 1<<20)
	kept := 0
	for {
		n, err := io.ReadFull(file, block[kept:])
		if bytes.Contains(block[:kept+n], []byte(text)) {
			return true, nil
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		kept = copy(block, block[len(block)-len(text):])
	}
}
