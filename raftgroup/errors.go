package raftgroup

import "errors"

// ErrNotLeader says that the replica does not lead its group; nothing was appended.
var ErrNotLeader = errors.New("raftgroup: not the leader")

// ErrDropped says that Raft did not take a proposal (leadership is being handed over, or the limit of uncommitted
// bytes is reached); nothing was appended.
var ErrDropped = errors.New("raftgroup: proposal dropped")

// ErrConfChange says that a configuration change does not fit the current configuration, or that another
// one is not finished; nothing was appended.
var ErrConfChange = errors.New("raftgroup: configuration change refused")

// ErrGroupExists says that the store already runs a group of this ID.
var ErrGroupExists = errors.New("raftgroup: group exists")

// ErrBadMessage says that a letter from another node cannot be decoded.
var ErrBadMessage = errors.New("raftgroup: malformed message")

// ErrStopped says that the store has been stopped.
var ErrStopped = errors.New("raftgroup: stopped")
