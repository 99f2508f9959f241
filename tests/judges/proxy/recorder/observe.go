package nftables

// observe is called with each object that a test adds, changes or deletes; nil where there is none.
var observe = func(kind string, before, after any) {}
