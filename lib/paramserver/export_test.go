package paramserver

// Stage has what goes between ranks copied through the host's own memory, as where it cannot reach the devices'.
func (e *Programs) Stage() { e.staged = true }
