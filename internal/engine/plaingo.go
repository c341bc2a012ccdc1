//go:build !resident

package engine

// GoMLX's backend in plain Go is large. A cell links it only with lib/offload, which alone plans updates on the host.
import _ "github.com/gomlx/compute/gobackend"
