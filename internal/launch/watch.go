package launch

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// watch waits for the end of a job, and kills it if it does not end within the grace time after a sign of trouble,
// after a host stopped answering, or after ctx ended. The error says why it was killed.
func watch(ctx context.Context, c Config, p Process, hosts []Host) error {
	asking, stop := context.WithCancel(context.WithoutCancel(ctx))
	answers := make(chan []Silent, 1)
	asked := false
	defer func() {
		stop()
		if asked {
			<-answers
		}
	}()
	var tick <-chan time.Time
	if slices.ContainsFunc(hosts, func(h Host) bool { return !h.Local() }) {
		ticker := time.NewTicker(max(c.Grace/3, time.Millisecond))
		defer ticker.Stop()
		tick = ticker.C
	}
	var silence, ending <-chan time.Time // deadlines for silent hosts and for the job to end
	interrupt, trouble, why := ctx.Done(), p.Trouble(), ""
	for {
		select {
		case <-p.Done():
			return nil
		case <-interrupt:
			interrupt = nil
			c.Say(fmt.Sprintf("interrupted: the ranks have %v to save and to end", c.Grace))
			p.Interrupt()
			ending, why = time.After(c.Grace), "it did not end when it was interrupted"
		case <-trouble:
			trouble = nil
			if ending == nil {
				ending, why = time.After(c.Grace), "its ranks failed, and mpirun did not end"
			}
		case <-tick:
			if !asked {
				asked = true
				go func() {
					_, silent := c.Probe(asking, hosts)
					answers <- silent
				}()
			}
		case silent := <-answers:
			asked = false
			switch {
			case len(silent) == 0:
				silence = nil
			case silence == nil:
				c.Say(fmt.Sprintf("host %s does not answer: the job has %v to end", names(silent), c.Grace))
				silence = time.After(c.Grace)
			}
		case <-silence:
			return kill(p, "a host did not answer, and mpirun did not end", c.Grace)
		case <-ending:
			return kill(p, why, c.Grace)
		}
	}
}

// kill ends a job and returns an error with the reason.
func kill(p Process, why string, grace time.Duration) error {
	p.Kill()
	<-p.Done()
	return fmt.Errorf("killed the job: %s within %v", why, grace)
}
