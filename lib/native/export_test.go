package native

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// WithCache is for tests.
var WithCache = withCache

// HasNVRTC reports whether NVRTC is found.
func HasNVRTC() bool {
	_, err := findNVRTC()
	return err == nil
}

// Headers returns the folder with the headers for half precision that belong to NVRTC.
func Headers() (string, error) {
	n, err := findNVRTC()
	return n.include, err
}

// Code returns the GPU's code of a library that CompileCUDA made, the only one in its cache folder, and the names of
// its kernels there.
func Code(l *Library) ([]byte, []string) {
	files := glob(filepath.Dir(l.path), "*.cubin.json")
	text, err := os.ReadFile(files[0])
	var i image
	if err != nil || json.Unmarshal(text, &i) != nil {
		return nil, nil
	}
	return i.Code, i.Names
}
