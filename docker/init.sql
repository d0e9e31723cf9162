create extension blobgc;
