package launch

import (
	"os"
	"os/exec"
	"testing"

	"github.com/shardbook/shardbook/internal/systest"
)

// The manifests of docker/ are tested in a module of their own, as the Kubernetes types that they are checked with are
// no dependency of the project. Without vet, which would have all of these types analysed.
func TestManifests(t *testing.T) {
	systest.FullOnly(t, "manifests by Kubernetes' own check")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "./...")
	cmd.Dir = "../../docker/manifests"
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, output)
	}
}
