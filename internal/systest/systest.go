// Package systest has what tests need of the system: its packages, mpirun, and goroutines that have ended.
package systest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Install installs packages of Debian or Ubuntu. It returns an error that says how
// where only root may, or where apt-get cannot.
func Install(packages ...string) error {
	line := "apt-get install -y --no-install-recommends " + strings.Join(packages, " ")
	if os.Geteuid() != 0 {
		return fmt.Errorf("only root may install it: %s", line)
	}
	install := exec.Command("sh", "-c", "apt-get update && "+line)
	install.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if output, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get cannot install it (%v): %s", err, output[max(0, len(output)-500):])
	}
	return nil
}
