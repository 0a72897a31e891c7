-- Requests that bring their own history are written down in sessions that nobody is shown, and fingerprints
-- of private text are kept: 8 bytes each, made with a key that is not in this file.

ALTER TABLE sessions ADD COLUMN kind TEXT NOT NULL DEFAULT 'conversation';
DROP INDEX sessions_by_age;
CREATE INDEX sessions_by_age ON sessions (owner, updated_at, session_id) WHERE kind = 'conversation';
CREATE INDEX sessions_of_requests ON sessions (updated_at) WHERE kind = 'requests';

ALTER TABLE turns ADD COLUMN fingerprinted INTEGER;  -- whether its fingerprints were made
CREATE INDEX turns_unmarked ON turns (session_id, number)
    WHERE label = 'local_only' AND messages IS NOT NULL AND fingerprinted IS NULL;

CREATE TABLE fingerprints (
    number     INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again: readers remember how far they are
    owner      TEXT NOT NULL,
    session_id TEXT NOT NULL,
    turn       INTEGER NOT NULL,
    at         REAL NOT NULL,
    data       BLOB NOT NULL
);
CREATE INDEX fingerprints_by_owner ON fingerprints (owner, number);
CREATE INDEX fingerprints_by_session ON fingerprints (session_id, turn);
