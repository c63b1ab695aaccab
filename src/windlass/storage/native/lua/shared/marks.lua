-- Marks. A job that completes may leave nothing at all. So a job that ends in another way, and leaves neither a result nor a
-- dead record, leaves a mark: else its handle would take it for completed. A mark is one letter (see storage/formats.py) in
-- the place of a result, for MARK_TTL_MS. It goes when the id is enqueued again.

local function leave_mark(id, letter)
  call('SET', RESULT_PREFIX .. id, letter, 'PX', MARK_TTL_MS)
end

local function drop_mark(id)
  call('UNLINK', RESULT_PREFIX .. id)
end
