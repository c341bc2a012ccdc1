package kernel

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
)

// Lab has the settings of JupyterLab.
type Lab struct {
	Dir       string // the folder it opens; "" is the project's notebooks
	NoBrowser bool
	IP        string   // "" means JupyterLab's default, localhost
	Port      int      // 0 means JupyterLab's default, 8888 or the next free port
	Args      []string // further arguments for `jupyter lab`
}

const allowRoot = "--allow-root"

// asRoot reports whether JupyterLab needs the argument that lets root run it, which Args do not have.
func (lab Lab) asRoot() bool { return os.Geteuid() == 0 && !slices.Contains(lab.Args, allowRoot) }

// Warning returns a line for the user if LabCommand adds an argument that weakens security, else "".
func (lab Lab) Warning() string {
	if !lab.asRoot() {
		return ""
	}
	return "JupyterLab is started with " + allowRoot + ": you are root, and so are all cells that run in it. " +
		"Be another user where that matters."
}

// LabCommand returns the command that opens JupyterLab on the project's notebooks. Jupyter prints the address with a
// new access token at each start, unless Args or the user's configuration set one.
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
	// After an interrupt that does not come from a terminal, Jupyter would end without its kernels.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd, nil
}
