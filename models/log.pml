/* A log's reader that resumes, and what the log keeps for it: src/flow/log/subscription.hpp,
 * src/flow/log/store.hpp, src/flow/log_reader.hpp.
 *
 *   Log     appends items, sends them over the connection there is, takes acknowledgements, drops
 *           what is acknowledged; is killed, and goes on with its files; loses its last item with
 *           its host, which begins another epoch
 *   Reader  takes items, makes something of each that stays (done), acknowledges what is done; is
 *           killed, or loses its connection, and joins again at the item that it wants next
 *
 * Modelled: positions, epochs, one connection at a time, rings whose content goes with it.
 * Left out: more than one reader (each has a connection and a place in the book of its own), bytes
 * (tests/log cuts files at every byte), how a ring carries frames (ring.pml).
 *
 * Settings: items, kills (of either end, or the connection), cuts (of the host).
 */
#include "common.pml"

local byte items, kills, cuts;
hidden byte comes_next, is_kept, is_what_it_was, was_sent;

#define MOST 4

/* On the log's disk. An item is the epoch in which it was appended. */
byte first, finish, acked, epoch;
byte item[MOST];
byte begin[8]; /* where each epoch began */
/* In the log's memory. */
bool connected;
byte cursor;
/* In the reader's, and on its disk: what it has made of items, and how far. */
byte position, done, made[MOST], known;
bool refused;

chan frames = [2] of { byte, byte };
chan requests = [1] of { byte };

inline forget_connection() {
    connected = false;
    cursor = 0;
    do :: requests?_ :: empty(requests) -> break od
}

proctype Log() {
    byte to;
end:
    do
    :: atomic { finish < items -> item[finish] = epoch; finish++ }
    :: atomic { connected && cursor < finish && nfull(frames) ->
        frames!cursor, item[cursor];
        cursor++ }
    :: atomic { connected && nempty(requests) ->
        requests?to;
        was_sent = to <= cursor;
        assert(was_sent);
        if :: to > acked -> acked = to :: else fi;
        to = 0 }
    :: atomic { first < (wrong(drops_sent) -> cursor : acked) -> first++ }
    :: atomic { kills > 0 -> kills--;
        epoch++; begin[epoch] = finish;
        forget_connection() }
    :: atomic { cuts > 0 && finish > first -> cuts--;
        finish--;
        if :: acked > finish -> acked = finish :: else fi;
        epoch++; begin[epoch] = finish;
        forget_connection() }
    od
}

/* Where the epochs after the one that it knows began: beyond one of them are items that the log lacks. */
inline judge() {
    at = known + 1;
    do
    :: at <= epoch && !wrong(epoch_not_asked) ->
        if :: position > begin[at] -> refused = true :: else fi;
        if :: wrong(next_epoch_alone) -> at = epoch :: else fi;
        at++
    :: else -> break
    od;
    at = 0
}

inline join() {
    judge();
    if
    :: refused -> skip
    :: else ->
        at = 0;
        do
        :: at < position ->
            is_what_it_was = made[at] == item[at];
            assert(is_what_it_was);
            at++
        :: else -> break
        od;
        at = 0;
        cursor = (wrong(begins_at_acknowledged) -> acked : position);
        if
        :: wrong(begins_at_sent) && last > cursor -> cursor = last
        :: else
        fi;
        is_kept = cursor >= first;
        assert(is_kept);
        if
        :: wrong(old_frames_kept) -> skip
        :: else -> do :: frames?_, _ :: empty(frames) -> break od
        fi;
        do :: requests?_ :: empty(requests) -> break od;
        known = epoch;
        connected = true;
        joined = true
    fi
}

proctype Reader() {
    byte at, value, last; /* last: how far frames had come, to the mutant that trusts it */
    bool joined;
    do
    :: atomic { !joined && !refused -> join() }
    :: atomic { joined && nempty(frames) ->
        frames?at, value;
        comes_next = at == position;
        assert(comes_next);
        made[at] = value;
        position++;
        if :: position > last -> last = position :: else fi;
        at = 0; value = 0 }
    :: atomic { done < position -> done = position }
    :: atomic { joined && connected && nfull(requests) && acked < done &&
                !wrong(acknowledges_taken) ->
        requests!done }
    :: atomic { joined && connected && nfull(requests) && acked < position &&
                wrong(acknowledges_taken) ->
        requests!position }
    /* Its process: what it had not made something of comes again. */
    :: atomic { kills > 0 && joined -> kills--;
        position = done; joined = false; forget_connection() }
    /* The connection, or the log's process. */
    :: atomic { joined && !connected && empty(frames) -> joined = false }
    :: atomic { joined && !connected && nempty(frames) -> joined = false }
    :: atomic { refused || (done == items && position == items) -> break }
    od
}

init {
    atomic {
        start();
        c_code {
            now.items = setting("MODEL_items", 3);
            now.kills = setting("MODEL_kills", 2);
            now.cuts = setting("MODEL_cuts", 1);
        };
        run Log();
        run Reader()
    }
}
