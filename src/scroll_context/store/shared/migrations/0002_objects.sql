-- What lies in the object store: payloads that garbage collection removes, and snapshots of replicas.

-- garbage collection (collect.py) --------------------------------------------------------------------------------------
--
-- A tombstone says that the objects of a digest that were put before its generation are deleted, or may be at any time.
-- Generations count in the whole store, so one number tells which tombstones a writer had seen when it put its bodies;
-- append() refuses an event whose bodies were put before a tombstone of theirs.

-- Declares deleted those of the digests that no event names. The caller has looked through the events up to p_after; the
-- later ones are looked through here, under the lock that every append takes. Returns what may be deleted now.
CREATE FUNCTION bury(p_store integer, p_after bigint, p_digests text[]) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
BEGIN
    PERFORM scroll.require(p_store, 'erase');
    IF current_setting('synchronous_commit') = 'off' THEN  -- a crash must not forget what was deleted
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM scroll.lock_store(p_store);
    RETURN QUERY
    WITH named AS MATERIALIZED (
        SELECT DISTINCT d.digest FROM scroll.event e, unnest(e.payloads) AS d(digest)
        WHERE e.store_id = p_store AND e.seq > p_after)
    INSERT INTO scroll.tombstone AS t
    SELECT p_store, d.digest, (SELECT coalesce(max(x.gen), 0) + 1 FROM scroll.tombstone x WHERE x.store_id = p_store), false
    FROM unnest(p_digests) AS d(digest) WHERE d.digest NOT IN (SELECT named.digest FROM named)
    ON CONFLICT (store_id, digest) DO UPDATE SET gen = excluded.gen
    RETURNING t.digest;
END $$;

-- snapshots (snapshots.py) ---------------------------------------------------------------------------------------------

CREATE TABLE snapshot (             -- copies of a replica, from which new hosts start; the server vouches for their bytes
    store_id integer NOT NULL REFERENCES store,
    key      text NOT NULL,         -- of the object, below the store
    seq      bigint NOT NULL,       -- up to which events are in it
    chain    bytea NOT NULL,        -- the chain value there
    bytes    bigint NOT NULL,
    sha256   text NOT NULL,
    created  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (store_id, key)
);
ALTER TABLE snapshot ENABLE ROW LEVEL SECURITY;
CREATE POLICY members ON snapshot FOR SELECT USING (store_id IN (SELECT scroll.readable()));

-- Lists a snapshot whose object is there. False when its head is not the history of this server, and when events that are
-- about the store itself come after it: one of them may be an erasure of what the snapshot holds.
CREATE FUNCTION add_snapshot(p_store integer, p_key text, p_seq bigint, p_chain bytea, p_bytes bigint, p_sha256 text)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
BEGIN
    PERFORM scroll.require(p_store, 'append');
    PERFORM scroll.lock_store(p_store);
    IF NOT EXISTS (SELECT FROM scroll.event WHERE store_id = p_store AND seq = p_seq AND chain = p_chain)
       OR EXISTS (SELECT FROM scroll.event WHERE store_id = p_store AND seq > p_seq AND session_id = 'scroll.store') THEN
        RETURN false;
    END IF;
    INSERT INTO scroll.snapshot VALUES (p_store, p_key, p_seq, p_chain, p_bytes, p_sha256) ON CONFLICT DO NOTHING;
    RETURN true;
END $$;

-- Takes snapshots off the list, all but the newest p_keep and those before p_before; their keys, for the caller to delete.
CREATE FUNCTION drop_snapshots(p_store integer, p_keep integer, p_before bigint) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
BEGIN
    PERFORM scroll.require(p_store, 'append');
    RETURN QUERY DELETE FROM scroll.snapshot s WHERE s.store_id = p_store AND (s.seq < p_before OR s.key NOT IN (
        SELECT n.key FROM scroll.snapshot n WHERE n.store_id = p_store ORDER BY n.seq DESC, n.created DESC LIMIT p_keep))
    RETURNING s.key;
END $$;
