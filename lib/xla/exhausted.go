package xla

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// ErrOutOfMemory is wrapped by the errors of Open and of programs for which a device has too little memory.
var ErrOutOfMemory = errors.New("a device is out of memory")

// exhausted matches what XLA says of it: PJRT's error code, XLA's name for that, or the driver's.
var exhausted = regexp.MustCompile(`PJRT error \(code=8\): |RESOURCE_EXHAUSTED: |CUDA_ERROR_OUT_OF_MEMORY`)

// mostReason is the length to which XLA's reason is cut: it may list all buffers of a program.
const mostReason = 200

// explain replaces what XLA says if a device is out of memory by one sentence that says what to do. It returns other
// errors as they are.
func explain(err error) error {
	if err == nil || errors.Is(err, ErrOutOfMemory) {
		return err
	}
	text := err.Error()
	found := exhausted.FindAllStringIndex(text, -1)
	if found == nil {
		return err
	}
	last := found[len(found)-1]
	reason, _, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(text[last[1]:], ":")), "\n")
	if reason = strings.TrimRight(reason[:min(len(reason), mostReason)], ". "); reason == "" {
		reason = text[last[0]:last[1]]
	}
	return fmt.Errorf("%w (%s): take a smaller batch or model, recompute, shard or offload more (`shardbook estimate` "+
		"compares them), or end what else uses the device (on a GPU nvidia-smi lists it)", ErrOutOfMemory, reason)
}
