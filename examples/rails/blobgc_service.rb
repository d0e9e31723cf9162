# frozen_string_literal: true

# Uploads of ActiveStorage that blobgc knows of: a service that stands before any other one.
#
# Put this file into lib/active_storage/service/ of your application: ActiveStorage looks there.
#
#   # config/storage.yml
#   amazon:
#     service: S3
#     …
#   announced:
#     service: Blobgc
#     storage: amazon
#     collection: active_storage_blobs
#     prefix: s3://bucket/
#
# Before an object is written, gc.begin_upload says so. An object of that key that is to be deleted
# then stays; one that is being deleted at this moment is waited for. The upload ends when the
# object is written, or when that fails. A row that is not there yet then has
# gc.settings.upload_timeout to come.
#
# ActiveStorage makes a new key for every blob and saves the row first. You need this only where
# gc.settings.strict_uploads is on, or where you choose keys yourself and may use one twice.

require "active_storage/service"
require "securerandom"

module ActiveStorage
  class Service::BlobgcService < Service
    attr_reader :storage

    delegate :download, :download_chunk, :open, :delete, :delete_prefixed, :exist?, :url, :public?,
      :update_metadata, :url_for_direct_upload, :headers_for_direct_upload, :path_for, :compose,
      to: :storage

    def self.build(configurator:, storage:, name: nil, service: nil, **options) # :nodoc:
      new(storage: configurator.build(storage), **options).tap do |announced|
        announced.name = name if announced.respond_to?(:name=) # Not in Rails 5.2.
      end
    end

    # A row that is not there yet has no id: the url says which object is meant, and no_key is an id
    # that no row has.
    def initialize(storage:, collection:, prefix:, no_key: "0")
      @storage = storage
      @collection = collection
      @prefix = prefix
      @no_key = no_key.to_s
    end

    def upload(key, io, **options)
      upload = SecureRandom.uuid
      call("gc.begin_upload(name => $1, key => $2, upload => $3, url => $4)", upload, @prefix + key)
      begin
        storage.upload(key, io, **options)
      ensure
        finish(upload)
      end
    end

    private

    def finish(upload)
      return if call("gc.end_upload(name => $1, key => $2, upload => $3)", upload)

      ActiveRecord::Base.logger&.error("an upload to #{@prefix} took longer than " \
        "gc.settings.upload_timeout: its object may be gone")
    end

    # On a connection, and so in a transaction, of its own: others must see it before the object is
    # written. The pool needs one connection more for each thread that uploads.
    def call(function, *parameters)
      pool = ActiveRecord::Base.connection_pool
      connection = pool.checkout
      begin
        answer = connection.raw_connection
          .exec_params("select #{function}", [@collection, @no_key, *parameters]).getvalue(0, 0)
        ![false, "f"].include?(answer)
      ensure
        pool.checkin(connection)
      end
    end
  end
end
