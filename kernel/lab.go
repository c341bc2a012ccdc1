package kernel

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
)

// Lab says how JupyterLab is started.
type Lab struct {
	Dir       string // the folder it opens; "" is the project's notebooks
	NoBrowser bool
	IP        string   // "" is JupyterLab's own default, localhost
	Port      int      // 0 is JupyterLab's own default, 8888 or the next that is free
	Args      []string // further arguments for `jupyter lab`
}

const allowRoot = "--allow-root"

// asRoot reports whether JupyterLab, which refuses root, must be told to run, as in a container, and Args do not.
func (lab Lab) asRoot() bool { return os.Geteuid() == 0 && !slices.Contains(lab.Args, allowRoot) }

// Warning is a line for the user if LabCommand adds an argument that he should know of, or "".
func (lab Lab) Warning() string {
	if !lab.asRoot() {
		return ""
	}
	return "JupyterLab is started with " + allowRoot + ": you are root, and so are all cells that run in it. " +
		"Be another user where that matters."
}

// LabCommand returns the command that opens JupyterLab on the project's notebooks. Its access token is Jupyter's own:
// made anew at each start and printed with the address, unless Args or the user's configuration set one.
func (k *Kernel) LabCommand(ctx context.Context, lab Lab) (*exec.Cmd, error) {
	if lab.Dir == "" {
		lab.Dir = k.notebooks()
	}
	args := []string{"lab", "--ServerApp.root_dir=" + lab.Dir}
	if lab.NoBrowser {
		args = append(args, "--no-browser")
	}
	if lab.IP != "" {
		args = append(args, "--ip="+lab.IP)
	}
	if lab.Port != 0 {
		args = append(args, "--port="+strconv.Itoa(lab.Port))
	}
	if lab.asRoot() {
		args = append(args, allowRoot)
	}
	cmd, err := k.Command(ctx, "jupyter", append(args, lab.Args...)...)
	if err != nil {
		return nil, err
	}
	// At an interrupt that does not come from a terminal, Jupyter ends and leaves its kernels running.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd, nil
}
