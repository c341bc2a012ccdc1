package kernel

import (
	"context"
	"os"
	"os/exec"
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

// LabCommand returns the command that opens JupyterLab on the project's
// notebooks. Its access token is Jupyter's own: made anew at each start and
// printed with the address, unless Args or the user's configuration set one.
func (k *Kernel) LabCommand(ctx context.Context, lab Lab) (*exec.Cmd, error) {
	if lab.Dir == "" {
		lab.Dir = k.Notebooks()
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
	if os.Geteuid() == 0 {
		args = append(args, "--allow-root") // as in a container; Jupyter refuses root otherwise
	}
	cmd, err := k.Command(ctx, "jupyter", append(args, lab.Args...)...)
	if err != nil {
		return nil, err
	}
	// At an interrupt that does not come from a terminal, Jupyter ends and leaves
	// its kernels running.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd, nil
}
