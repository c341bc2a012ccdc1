package native

// WithCache is for tests.
var WithCache = withCache
